"""The status of runs that are jobs, from what SLURM says and what is in their folders."""

import json
import os
import re
import socket
import threading
import time
from contextlib import closing, nullcontext

import pytest
from composed_overrides import composed

from collectx.errors import LauncherError
from collectx.jobs.status import (
    NamedRun,
    named_run,
    numbers_of,
    read_job,
    status_of_job,
    status_of_process,
    waiting_workers,
    where_running,
    write_job,
)
from collectx.place.slurm import commands
from collectx.place.slurm.commands import JobState
from collectx.run import RunFolder
from collectx.run.folder import snapshot
from collectx.run.folder.events import EventLog
from collectx.run.folder.files import write_json
from collectx.run.folder.layout import locked


@pytest.fixture
def folder(tmp_path):
    """A run that is job 7."""
    files = RunFolder(tmp_path / "run")
    files.begin()
    files.jobs.mkdir()
    write_job(files, "7")
    return files


@pytest.mark.parametrize(
    ("said", "word", "part"),
    [
        ({"7": JobState("PENDING", False, False, "Resources")}, "queued", "Resources"),
        ({"7": JobState("RUNNING", False, True, "", "n1")}, "running", "n1"),
        ({"7": JobState("CONFIGURING", False, False)}, "queued", "CONFIGURING"),
        (
            {"7": JobState("COMPLETING", False, True, "", "n1")},
            "running",
            "on n1, COMPLETING (SLURM is ending its processes)",
        ),
        ({"7": JobState("NODE_FAIL", True, True, "", "n[1-2]")}, "failed", "; SLURM says that n2 is down"),
        ({"7": JobState("CANCELLED", True, True)}, "interrupted", "CANCELLED"),
        ({"7": JobState("FAILED", True, True)}, "failed", "FAILED"),
        ({}, "interrupted", "job 7 was cancelled before it started"),
        ({"7": JobState("FAILED", True, True)}, "failed", "perhaps because not all nodes share its file system"),
        (LauncherError("Unable to contact slurm controller"), "unknown", "Unable to contact"),
    ],
)
def test_a_job_without_a_result_is_what_slurm_says(folder, said, word, part, monkeypatch):
    monkeypatch.setattr(commands, "down", lambda nodes: ["n2"])
    found = status_of_job(folder, "7", said)
    assert found.status == word
    assert part in found.detail
    folder.log("job").write_text("Killed\n")
    folder.log("trainer").write_text("a message of the trainer\n")
    forgotten = status_of_job(folder, "7", {})
    assert forgotten.status == "failed"
    assert re.match(r"SLURM no longer knows job 7(?s:.*)job.log ends with:\n  Killed", forgotten.detail)


def test_a_job_that_waits_because_a_node_was_lost_says_so(folder):
    states = {"7": JobState("PENDING", False, False, "BeginTime")}
    assert status_of_job(folder, "7", states).detail == "BeginTime"
    with closing(EventLog(folder)) as events:
        events("requeued", reason="n3, the node of worker 1, is lost")
    reason = "requeued (n3, the node of worker 1, is lost), BeginTime"
    assert status_of_job(folder, "7", states).detail == reason


@pytest.mark.parametrize(("state", "advice"), [("TIMEOUT", "launcher.time"), ("PREEMPTED", "launcher.requeue=true")])
def test_a_run_that_slurm_has_interrupted_says_why(folder, state, advice):
    write_json(folder.result, {"status": "interrupted", "exit_reason": "interrupted by SIGTERM"})
    ended, cancelled = (status_of_job(folder, "7", {"7": JobState(each, True, True)}) for each in (state, "CANCELLED"))
    assert ended.status == cancelled.status == "interrupted"
    assert ended.detail.startswith(f"interrupted by SIGTERM; job 7 ended as {state}, because ")
    assert advice in ended.detail
    assert cancelled.detail == "interrupted by SIGTERM"
    ending = status_of_job(folder, "7", {"7": JobState("COMPLETING", False, True)})
    assert ending.detail == "interrupted by SIGTERM; job 7 is COMPLETING (SLURM is ending its processes)"
    write_json(folder.result, {"status": "interrupted", "exit_reason": "interrupted by SIGTERM: SLURM is ending job 7"})
    ended = status_of_job(folder, "7", {"7": JobState(state, True, True)})
    assert ended.detail.startswith(f"interrupted by SIGTERM: SLURM is ending job 7; job 7 ended as {state}, because ")


def test_the_clock_of_another_host_may_be_ahead(folder):
    folder.metrics.write_text("{}\n")
    for ahead_s, text in ((-90, "last batch 9"), (3600, "time of the last batch unknown (the clock of its host is 3")):
        os.utime(folder.metrics, (time.time() + ahead_s,) * 2)
        assert text in status_of_job(folder, "7", LauncherError("SLURM does not answer")).detail


def test_a_run_in_a_job_of_submitit_has_that_job(tmp_path, monkeypatch):
    files = RunFolder(tmp_path / "run")
    files.begin()
    slurm = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "0"}
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    snapshot.write(composed(), files, [])
    assert read_job(files) == "8_0"
    assert status_of_job(files, "8_0", {"8_0": JobState("RUNNING", False, True, "", "n1")}).status == "running"
    ended = status_of_job(files, "8_0", {"8_0": JobState("FAILED", True, True, "", "n1")})
    assert ended.detail.startswith("job 8_0 ended as FAILED on n1\n")
    assert "it was probably killed" in ended.detail
    assert status_of_job(files, "8_0", {}).status == "failed"
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    snapshot.write(composed(), files, [])
    assert read_job(files) is None


def test_a_run_that_is_starting_is_running_and_its_configuration_is_awaited(tmp_path):
    files, cfg = RunFolder(tmp_path / "run"), composed()
    files.begin()
    with locked(files, replace=True):
        assert status_of_process(files).status == "running"
        assert status_of_process(files).detail == "it is starting"
        writer = threading.Timer(0.2, snapshot.write, (cfg, files, []))
        writer.start()
        assert named_run(files).cfg == cfg
        writer.join()


def test_why_workers_wait(folder, monkeypatch):
    states = {
        "8_0": JobState("PENDING", False, False, "Resources"),
        "8_1": JobState("RUNNING", False, True),
        "8_2": JobState("PENDING", False, False, "Resources"),
        "8_3": JobState("CANCELLED", True, False),
        "9_5": JobState("PENDING", False, False, "Priority"),
    }
    folder.worker_jobs.write_text("8_0 0\n8_1 1\n8_2 2\n8_3 3\n9_5 4\n")
    monkeypatch.setattr(commands, "states", lambda jobs: {job: states[job] for job in jobs})
    reasons = [str(states[job]) for job in ("8_0", "9_5")]
    assert waiting_workers(folder) == [f"workers 0 and 2 are {reasons[0]}", f"worker 4 is {reasons[1]}"]
    monkeypatch.setattr(commands, "states", lambda jobs: (_ for _ in ()).throw(LauncherError("no answer")))
    assert waiting_workers(folder) == ["cannot tell whether worker jobs are waiting in the queue: no answer"]


@pytest.mark.parametrize(
    ("queue", "lock", "note", "text"),
    [
        ("PENDING", False, "job", "queued as job 7"),
        ("RUNNING", False, "job", "running as job 7"),
        ("COMPLETED", False, "job", ""),
        (None, True, None, "running as process PID on HOST"),
        (None, False, None, ""),
    ],
)
def test_where_a_run_is(folder, monkeypatch, queue, lock, note, text):
    states = {"7": JobState(queue, queue == "COMPLETED", queue != "PENDING")}
    monkeypatch.setattr(commands, "states", lambda jobs: {job: states[job] for job in jobs})
    if note is None:
        folder.job_note.unlink()
    with locked(folder, replace=True) if lock else nullcontext():
        expected = text.replace("PID", str(os.getpid())).replace("HOST", socket.gethostname())
        assert where_running(folder) == expected


def test_a_run_of_another_host_runs_while_its_worker_jobs_do(folder, monkeypatch):
    folder.job_note.unlink()
    folder.meta.parent.mkdir(exist_ok=True)
    write_json(folder.meta, {"host": "elsewhere"})
    folder.worker_jobs.write_text("8_0\n8_1 1\n")
    states = {"8_0": JobState("RUNNING", False, True), "8_1": JobState("PENDING", False, False, "Priority")}
    monkeypatch.setattr(commands, "states", lambda jobs: {job: states[job] for job in jobs})
    found = status_of_process(folder)
    assert found.status == "running"
    assert found.detail == "on elsewhere, no batch yet; 2 worker jobs still queued or running"
    assert waiting_workers(folder) == [f"worker 1 is {states['8_1']}"]
    states["8_1"] = JobState("CANCELLED", True, False)
    assert status_of_process(folder).detail.endswith("1 worker job still queued or running")
    states["8_0"] = JobState("FAILED", True, True)
    found = status_of_process(folder)
    assert found.status == "unknown"
    assert found.detail.startswith("it was started on elsewhere and has no result")


def test_the_last_lines_of_the_log_are_in_the_reason(folder):
    folder.log("trainer").write_text("".join(f"line {number}\n" for number in range(60)))
    lines = status_of_job(folder, "7", {"7": JobState("FAILED", True, True)}).detail.splitlines()
    assert lines[0] == "job 7 ended as FAILED"
    assert lines[2:] == [f"  line {number}" for number in range(20, 60)]


def test_numbers_are_those_of_the_result_or_of_the_batches(folder):
    assert numbers_of(folder) is None
    line = {"batch": 0, "time": 0.0, "frames": 12, "frames_per_s": 3.0, "waited_s": 0.0, "version": 0, "lag": 0.0}
    folder.metrics.write_text(json.dumps(line | {"mean_return": 2.5}) + "\n")
    numbers = {"frames": 12, "frames_per_s": None, "mean_return": 2.5, "taking_part": None, "learners": []}
    assert numbers_of(folder) == numbers
    write_json(folder.result, {"status": "completed", "frames": 99})
    assert numbers_of(folder) == {"status": "completed", "frames": 99}


def test_how_long_a_run_and_its_workers_may_take_to_end(tmp_path):
    run = NamedRun("a", tmp_path, composed("checkpoint.grace_s=7 collector.close_timeout_s=20"))
    assert (run.grace_s, run.workers_grace_s) == (27.0, 25.0)


def test_a_point_between_two_rungs_waits(tmp_path):
    point = RunFolder(tmp_path / "sweep" / "seed=0")
    point.begin()
    multirun = point.path.parent / "multirun.yaml"
    rung = {"number": 1, "of": 2, "rank": 1, "num_ranked": 2}
    reason = "1 batch delivered (run.max_batches=1)"
    statuses = []
    for sweeper, told in [
        ("BasicSweeper", None),
        ("HalvingSweeper", None),
        ("HalvingSweeper", {**rung, "stopped": False}),
        ("HalvingSweeper", {**rung, "stopped": True}),
        ("HalvingSweeper", {**rung, "number": 2, "stopped": False}),
    ]:
        multirun.write_text(f"_target_: {sweeper}")
        write_json(point.result, {"status": "completed", "exit_reason": reason} | ({"rung": told} if told else {}))
        statuses.append(str(status_of_process(point).status))
    assert statuses == ["completed", "waiting", "waiting", "stopped", "completed"]
    # A point that was resumed after the sweep.
    write_json(point.result, {"status": "completed", "exit_reason": reason})
    (multirun.parent / "optimization_results.yaml").touch()
    assert status_of_process(point).status == "completed"
