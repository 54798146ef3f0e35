"""Workers that are jobs: submitted together, watched, replaced, cancelled, over a scheduler that does as it is told."""

from __future__ import annotations

import os
import select
import threading

import pytest

from collectx.errors import LauncherError
from collectx.launcher import jobs
from collectx.launcher.jobs import JobState, WorkerJobs

PENDING = JobState("PENDING", False, False, "Resources")
RUNNING = JobState("RUNNING", False, True, "", "n1")
COMPLETED = JobState("COMPLETED", True, True, "", "n1")
FAILED = JobState("FAILED", True, True, "NonZeroExitCode", "n1")


class Scripted:
    """A scheduler whose jobs are in the states that a test gives them."""

    def __init__(self):
        self.now = {}
        self.submitted = []
        self.cancelled = []
        self.threads = set()
        self.refusal = None
        self.is_down = False

    def submit(self, workers):
        self.threads.add(threading.current_thread().name)
        if self.refusal:
            raise LauncherError(self.refusal)
        self.submitted.append(list(workers))
        ids = {worker: f"{len(self.submitted)}_{worker}" for worker in workers}
        self.now |= dict.fromkeys(ids.values(), PENDING)
        return ids

    def states(self, ids):
        if self.is_down:
            raise LauncherError("squeue: Unable to contact slurm controller")
        return {job: self.now[job] for job in ids if job in self.now}

    def cancel(self, ids):
        self.cancelled += ids
        self.now |= dict.fromkeys(ids, JobState("CANCELLED", True, False))


@pytest.fixture
def scheduler(monkeypatch):
    for name in ("_FIRST_POLL_S", "_LAST_POLL_S", "_CLOSING_POLL_S", "_RETRY_S", "_PATIENCE_S", "_NOTICE_S"):
        monkeypatch.setattr(jobs, name, 0.01)
    return Scripted()


@pytest.fixture
def said():
    return []


@pytest.fixture
def workers(scheduler, said, tmp_path):
    with WorkerJobs(scheduler, 3, lambda worker: tmp_path / f"worker-{worker}.log", 0.2, said.append) as workers:
        yield workers


def is_readable(descriptor):
    return bool(select.select([descriptor], [], [], 0)[0])


def test_the_first_lives_are_one_submission_and_replacements_are_the_watchers(scheduler, workers, wait_until):
    handles = [workers.start(worker, 0) for worker in range(3)]
    assert scheduler.submitted == [[0, 1, 2]]
    assert [handle.id for handle in handles] == ["1_0", "1_1", "1_2"]
    assert scheduler.threads == {"MainThread"}
    other = workers.start(1, 1)
    wait_until(lambda: other.id == "2_1", 60, "the replacement is submitted")
    assert scheduler.submitted == [[0, 1, 2], [1]]
    assert scheduler.threads == {"MainThread", "collectx-jobs"}
    assert workers.describe(1).startswith("worker 1 (job 2_1: ")
    assert workers.describe(0).startswith("worker 0 (job 1_0: ")


@pytest.mark.parametrize("end", [FAILED, COMPLETED, None], ids=["failed", "completed", "forgotten"])
def test_the_end_of_a_job_is_made_known(end, scheduler, workers, wait_until, tmp_path):
    first, second, _ = [workers.start(worker, 0) for worker in range(3)]
    (tmp_path / "worker-0.log").write_text(
        "at work\nModuleNotFoundError: No module named 'torch'\nsrun: n1: Exited with exit code 1\n\n"
    )
    scheduler.now["1_1"] = RUNNING
    wait_until(lambda: second.state == RUNNING, 60, "the job runs")
    assert not is_readable(first.sentinel)
    assert first.exitcode is None
    if end is None:
        del scheduler.now["1_0"]
    else:
        scheduler.now["1_0"] = end
    wait_until(lambda: is_readable(first.sentinel), 60, "the end is known")
    assert first.exitcode == (0 if end is COMPLETED else 1)
    assert not is_readable(second.sentinel)
    assert second.exitcode is None
    if end is FAILED:
        assert "FAILED (NonZeroExitCode) on n1" in workers.describe(0)
        assert "which ends: ModuleNotFoundError: No module named 'torch'" in workers.describe(0)


def test_a_failed_job_without_a_word_points_at_the_shared_folder(scheduler, workers, wait_until):
    first, *_ = [workers.start(worker, 0) for worker in range(3)]
    scheduler.now["1_0"] = FAILED
    wait_until(lambda: first.exitcode == 1, 60, "the end is known")
    assert "a file system that all nodes share" in workers.describe(0)
    scheduler.now["1_1"] = JobState("NODE_FAIL", True, True, "NodeDown", "n1")
    wait_until(lambda: "NODE_FAIL" in workers.describe(1), 60, "the end is known")
    assert "share" not in workers.describe(1)


def test_what_is_not_wanted_is_cancelled_at_once_in_the_queue_and_later_when_it_runs(scheduler, workers, wait_until):
    waiting, running, wanted = [workers.start(worker, 0) for worker in range(3)]
    scheduler.now |= {"1_1": RUNNING, "1_2": RUNNING}
    wait_until(lambda: running.state == wanted.state == RUNNING, 60, "they run")
    for handle in (waiting, running):
        handle.terminate()
        handle.kill()
        handle.join(10)
    wait_until(lambda: (waiting.exitcode, running.exitcode) == (1, 1), 60, "both are cancelled")
    assert scheduler.cancelled == ["1_0", "1_1"]
    assert wanted.exitcode is None


def test_closing_waits_for_those_that_end_by_themselves(scheduler, said, tmp_path, wait_until):
    with WorkerJobs(scheduler, 2, lambda worker: tmp_path / "log", 30.0, said.append) as workers:
        running, waiting = (workers.start(worker, 0) for worker in range(2))
        scheduler.now["1_0"] = RUNNING
        wait_until(lambda: running.state == RUNNING, 60, "it runs")
        threading.Timer(0.1, scheduler.now.update, [{"1_0": COMPLETED}]).start()
    assert scheduler.cancelled == ["1_1"]
    assert (running.exitcode, waiting.exitcode) == (0, 1)
    for descriptor in (running.sentinel, waiting.sentinel):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    workers.close()


def test_a_user_who_does_not_wait_leaves_no_job(scheduler, said, tmp_path, wait_until, monkeypatch):
    workers = WorkerJobs(scheduler, 1, lambda worker: tmp_path / "log", 1000.0, said.append)
    handle = workers.start(0, 0)
    scheduler.now["1_0"] = RUNNING
    wait_until(lambda: handle.state == RUNNING, 60, "it runs")
    join = workers._watcher.join
    interruptions = [KeyboardInterrupt]

    def interrupted():
        if interruptions:
            raise interruptions.pop()
        join(60)

    monkeypatch.setattr(workers._watcher, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.close()
    assert scheduler.cancelled == ["1_0"]


def test_a_refused_first_submission_is_raised_and_a_refused_replacement_tried_again(
    scheduler, said, tmp_path, wait_until
):
    scheduler.refusal = "sbatch: error: invalid partition specified: nope"
    with WorkerJobs(scheduler, 1, lambda worker: tmp_path / "log", 0.1, said.append) as workers:
        with pytest.raises(LauncherError, match="nope"):
            workers.start(0, 0)
        scheduler.refusal = None
        workers.start(0, 0)
        scheduler.refusal = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
        handle = workers.start(0, 1)
        wait_until(lambda: said.count(scheduler.refusal) == 1, 60, "the refusal is said")
        assert handle.exitcode is None
        assert "NOT SUBMITTED (sbatch: error: QOSMaxSubmitJobPerUserLimit)" in workers.describe(0)
        scheduler.refusal = None
        wait_until(lambda: handle.id is not None, 60, "it is submitted in the end")
    assert said.count("sbatch: error: QOSMaxSubmitJobPerUserLimit") == 1


def test_a_scheduler_that_does_not_answer_is_no_dead_worker(scheduler, workers, said, wait_until):
    handle = workers.start(0, 0)
    scheduler.is_down = True
    wait_until(lambda: any("Unable to contact" in line for line in said), 60, "it is said")
    assert handle.exitcode is None
    scheduler.is_down = False
    scheduler.now["1_0"] = RUNNING
    wait_until(lambda: handle.state == RUNNING, 60, "it answers again")


def test_who_waits_in_the_queue_and_why_is_said(scheduler, workers, said, wait_until):
    workers.start(0, 0)
    scheduler.now["1_1"] = RUNNING
    notice = "2 of 3 workers wait in the queue: worker 0, 2: PENDING (Resources)"
    wait_until(lambda: notice in said, 60, "it is said")
