"""Workers that are jobs: submitted together, watched, replaced, cancelled, over a scheduler that a test scripts."""

import select
import threading
from contextlib import closing

import pytest

from collectx.errors import JobEnded, LauncherError, WorkerDied
from collectx.place.slurm import job_watcher
from collectx.place.slurm.commands import JobState
from collectx.place.slurm.job_watcher import JobWatcher
from collectx.transport.peer import death_error

# What a scheduler starts instead.
NOTHING = (print, ())
PENDING = JobState("PENDING", False, False, "Resources")
RUNNING = JobState("RUNNING", False, True, "", "n1")
COMPLETED = JobState("COMPLETED", True, True, "", "n1")
FAILED = JobState("FAILED", True, True, "NonZeroExitCode", "n1")
NODE_FAIL = JobState("NODE_FAIL", True, True, "NodeDown", "n1")


class Scripted:
    """A scheduler whose jobs are in the states `now` that a test sets; None: forgotten. `refusal` is of submissions."""

    def __init__(self):
        self.now, self.submitted, self.cancelled = {}, [], []
        self.refusal = self.trouble = None

    def submit(self, workers):
        if self.refusal:
            raise LauncherError(self.refusal)
        self.submitted.append(list(workers))
        ids = {worker: f"{len(self.submitted)}_{worker}" for worker in workers}
        self.now |= dict.fromkeys(ids.values(), PENDING)
        return ids

    def states(self, ids):
        if self.trouble:
            raise self.trouble
        return {job: state for job in ids if (state := self.now[job])}

    def is_ended_by_slurm(self, job, state):
        return state.word == "PREEMPTED"

    def cancel(self, ids):
        self.cancelled += ids
        self.now |= dict.fromkeys(ids, JobState("CANCELLED", True, False))


class Jobs(JobWatcher):
    """Of three workers. `lines` is what they say."""

    def __init__(self, folder, grace_s=0.2):
        self.scheduler, self.lines = Scripted(), []
        super().__init__(
            self.scheduler,
            num_workers=3,
            log=lambda worker: folder / f"worker-{worker}.log",
            grace_s=grace_s,
            say=self.lines.append,
        )

    def start_all(self):
        return [self.start(worker, NOTHING) for worker in range(3)]

    def become(self, worker, state):
        self.scheduler.now[f"1_{worker}"] = state


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    for name in ("_FIRST_POLL_S", "_LAST_POLL_S", "_CLOSING_POLL_S", "_RETRY_S", "_PATIENCE_S", "_NOTICE_S"):
        monkeypatch.setattr(job_watcher, name, 0.01)


@pytest.fixture
def workers(tmp_path):
    with closing(Jobs(tmp_path)) as workers:
        yield workers


def is_readable(descriptor):
    return bool(select.select([descriptor], [], [], 0)[0])


def test_the_first_lives_are_one_submission_and_the_watcher_submits_replacements(workers, wait_until):
    first, *others = workers.start_all()
    assert [handle.text.partition(":")[0] for handle in (first, *others)] == ["job 1_0", "job 1_1", "job 1_2"]
    assert workers.lines[0] == "submitted the workers as jobs 1_0 to 1_2"
    other = workers.start(1, NOTHING, 1)
    wait_until(lambda: "job 2_1: " in other.text, what="the replacement is submitted")
    assert workers.scheduler.submitted == [[0, 1, 2], [1]]
    assert workers.describe(1, other).startswith("worker 1 (job 2_1: ")
    assert workers.describe(0, first).startswith("worker 0 (job 1_0: ")


@pytest.mark.parametrize(
    ("end", "log", "text"),
    [
        (FAILED, "ImportError: no torch\nsrun: n1: Exited with exit code 1\n\n", "ends: ImportError: no torch"),
        (FAILED, "", "on n1; log: {log})"),
        (FAILED, None, "If not all nodes share the run folder, choose"),
        (NODE_FAIL, "", "NODE_FAIL (NodeDown) on n1; log: {log})"),
        (COMPLETED, "", "COMPLETED on n1; log: {log})"),
        (None, "", "GONE"),
    ],
)
def test_the_end_of_a_job_makes_its_sentinel_readable_and_is_described(workers, wait_until, tmp_path, end, log, text):
    first, second, _ = workers.start_all()
    path = tmp_path / "worker-0.log"
    if log is not None:
        path.write_text(log)
    workers.become(1, RUNNING)
    wait_until(lambda: "RUNNING" in second.text)
    assert first.exitcode is None
    assert not is_readable(first.sentinel)
    workers.become(0, end)
    wait_until(lambda: is_readable(first.sentinel))
    assert first.exitcode == (0 if end is COMPLETED else 1)
    assert text.format(log=path) in workers.describe(0, first)
    assert second.exitcode is None
    assert not is_readable(second.sentinel)


def test_a_terminated_job_is_cancelled_at_once_in_the_queue_and_later_when_it_runs(workers, wait_until):
    waiting, running, kept = workers.start_all()
    for worker in (1, 2):
        workers.become(worker, RUNNING)
    wait_until(lambda: "RUNNING" in running.text and "RUNNING" in kept.text)
    for handle in (waiting, running):
        handle.terminate()
        handle.kill()
        handle.join(10)
    wait_until(lambda: (waiting.exitcode, running.exitcode) == (1, 1))
    assert workers.scheduler.cancelled == ["1_0", "1_1"]
    assert kept.exitcode is None


def test_closing_waits_for_jobs_that_end_by_themselves(tmp_path, wait_until):
    with closing(Jobs(tmp_path, grace_s=60.0)) as workers:
        running, *waiting = workers.start_all()
        workers.become(0, RUNNING)
        wait_until(lambda: "RUNNING" in running.text)
        cancel = workers.scheduler.cancel

        def cancelled(ids):
            workers.become(0, COMPLETED)
            cancel(ids)

        workers.scheduler.cancel = cancelled
    assert workers.scheduler.cancelled == ["1_1", "1_2"]
    assert [handle.exitcode for handle in (running, *waiting)] == [0, 1, 1]


@pytest.mark.parametrize("recovers", [True, False])
def test_jobs_that_cannot_be_cancelled_at_the_end_are_tried_again_and_then_named(tmp_path, monkeypatch, recovers):
    monkeypatch.setattr(job_watcher, "_RETRY_S", 60.0 if recovers else 0.05)
    num_tried = 0

    def refused(ids):
        nonlocal num_tried
        num_tried += 1
        if num_tried < 3 or not recovers:
            raise LauncherError("scancel: error: Unable to contact slurm controller")
        cancel(ids)

    with closing(Jobs(tmp_path)) as workers:
        handles = workers.start_all()
        cancel, workers.scheduler.cancel = workers.scheduler.cancel, refused
    assert num_tried >= 3
    assert workers.scheduler.cancelled == (["1_0", "1_1", "1_2"] if recovers else [])
    said = "these jobs may go on, because they could not be cancelled. Type: scancel 1_0 1_1 1_2"
    assert (said in workers.lines) is not recovers
    assert [handle.exitcode for handle in handles] == [1, 1, 1]


def test_a_refused_first_submission_is_raised_and_a_refused_replacement_is_tried_again(workers, wait_until):
    workers.scheduler.refusal = "sbatch: error: invalid partition specified: nope"
    with pytest.raises(LauncherError, match="nope"):
        workers.start_all()
    workers.scheduler.refusal = None
    workers.start_all()
    refusal = workers.scheduler.refusal = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    handle = workers.start(0, NOTHING, 1)
    wait_until(lambda: refusal in workers.lines)
    assert handle.exitcode is None
    assert f"NOT SUBMITTED ({refusal})" in workers.describe(0, handle)
    workers.scheduler.refusal = None
    wait_until(lambda: "job 2_0: " in handle.text, what="it is submitted in the end")
    assert workers.lines.count(refusal) == 1


def test_slurm_is_asked_less_and_less_often_while_nothing_changes(tmp_path, monkeypatch, within, wait_until):
    """SLURM is asked less often while replacements are refused, too, and at once again after a change."""
    pauses = []

    class Condition(threading.Condition):
        def wait_for(self, predicate, timeout):
            pauses.append(timeout)
            return super().wait_for(predicate, 0.001)

    within(job_watcher, "threading", Condition=Condition)
    monkeypatch.setattr(job_watcher, "_FIRST_POLL_S", 1.0)
    monkeypatch.setattr(job_watcher, "_LAST_POLL_S", 10.0)
    with closing(Jobs(tmp_path)) as workers:
        workers.start_all()
        workers.scheduler.refusal = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
        workers.start(0, NOTHING, 1)
        wait_until(lambda: workers.scheduler.refusal in workers.lines and pauses[-1] == 10.0)
        num_pauses = len(pauses)
        workers.become(1, RUNNING)
        wait_until(lambda: 1.0 in pauses[num_pauses:])


@pytest.mark.parametrize(
    "trouble", [LauncherError("squeue: Unable to contact slurm controller"), ValueError("not enough values to unpack")]
)
def test_a_scheduler_that_does_not_answer_or_not_as_it_should_is_no_dead_worker(workers, wait_until, trouble):
    handle, *_ = workers.start_all()
    workers.scheduler.trouble = trouble
    wait_until(lambda: any(str(trouble) in line for line in workers.lines))
    assert handle.exitcode is None
    workers.scheduler.trouble = None
    workers.become(0, RUNNING)
    wait_until(lambda: "RUNNING" in handle.text)


@pytest.mark.parametrize(("word", "kind"), [("PREEMPTED", JobEnded), ("FAILED", WorkerDied)])
def test_a_worker_that_slurm_ends_before_it_joins_has_not_failed(workers, wait_until, word, kind):
    handle, *_ = workers.start_all()
    workers.become(0, JobState(word, True, True))
    wait_until(lambda: is_readable(handle.sentinel))
    assert type(death_error("worker 0", False, handle, 0.0, None)) is kind


def test_which_workers_wait_in_the_queue_is_said_with_the_reason(workers, wait_until):
    workers.start_all()
    workers.become(1, RUNNING)
    wait_until(
        lambda: "2 of 3 workers are waiting in the queue: workers 0 and 2 are PENDING (Resources)" in workers.lines
    )
