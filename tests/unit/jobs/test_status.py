"""The status of runs that are jobs, from what SLURM says and what is in their folders."""

import re
from contextlib import closing

import pytest

from collectx.errors import LauncherError
from collectx.jobs.status import status_of_job, write_job
from collectx.launcher.slurm import commands
from collectx.launcher.slurm.commands import JobState
from collectx.run import RunFolder
from collectx.run.events import EventLog
from collectx.run.files import write_json


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
            "on n1: COMPLETING (SLURM ends its processes)",
        ),
        ({"7": JobState("NODE_FAIL", True, True, "", "n[1-2]")}, "failed", "; SLURM says that n2 is down"),
        ({"7": JobState("CANCELLED", True, True)}, "interrupted", "CANCELLED"),
        ({"7": JobState("FAILED", True, True)}, "failed", "FAILED"),
        ({}, "interrupted", "job 7 was cancelled in the queue"),
        ({"7": JobState("FAILED", True, True)}, "failed", "all nodes must share that file system"),
        (LauncherError("Unable to contact slurm controller"), "unknown", "Unable to contact"),
    ],
)
def test_a_job_without_a_result_is_what_slurm_says(folder, said, word, part, monkeypatch):
    monkeypatch.setattr(commands, "down", lambda nodes: ["n2"])
    found = status_of_job(folder, "7", said)
    assert found.status == word
    assert part in found.detail
    folder.log("job").write_text("Killed\n")
    forgotten = status_of_job(folder, "7", {})
    assert forgotten.status == "failed"
    assert re.match(r"SLURM knows no job 7 any more(?s:.*)job.log ends:\n  Killed", forgotten.detail)


def test_a_job_that_waits_because_a_node_was_lost_says_so(folder):
    states = {"7": JobState("PENDING", False, False, "BeginTime")}
    assert status_of_job(folder, "7", states).detail == "BeginTime"
    with closing(EventLog(folder)) as events:
        events("requeued", reason="n3, the node of worker 1, does not answer")
    reason = "requeued (n3, the node of worker 1, does not answer): BeginTime"
    assert status_of_job(folder, "7", states).detail == reason


@pytest.mark.parametrize(("state", "advice"), [("TIMEOUT", "launcher.time"), ("PREEMPTED", "launcher.requeue=true")])
def test_a_run_that_slurm_has_interrupted_says_why(folder, state, advice):
    write_json(folder.result, {"status": "interrupted", "exit_reason": "interrupted by SIGTERM"})
    ended, cancelled = (status_of_job(folder, "7", {"7": JobState(each, True, True)}) for each in (state, "CANCELLED"))
    assert ended.status == cancelled.status == "interrupted"
    assert ended.detail.startswith(f"interrupted by SIGTERM: job 7 ended as {state}: ")
    assert advice in ended.detail
    assert cancelled.detail == "interrupted by SIGTERM"
    ending = status_of_job(folder, "7", {"7": JobState("COMPLETING", False, True)})
    assert ending.detail == "interrupted by SIGTERM: job 7 is COMPLETING (SLURM ends its processes)"
