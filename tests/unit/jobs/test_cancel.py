"""Ending runs: which are signalled, which jobs are cancelled, how long it takes, what is printed."""

import os
import signal
import socket
from types import SimpleNamespace

import psutil
import pytest

from collectx import process
from collectx.errors import LauncherError
from collectx.jobs import cancel
from collectx.jobs.status import RunStatus
from collectx.place.slurm.commands import JobState
from collectx.run import RunFolder, Status

RUNNING = JobState("RUNNING", False, True)
ENDED = JobState("COMPLETED", True, True)


class World:
    """Runs by name, with the time of their end; a process, a job, or jobs of workers. `calls` is what was done."""

    def __init__(self, monkeypatch, within, folder):
        self.now_s, self.calls, self.runs, self.folder = 0.0, [], {}, folder
        named = {"named_run": self.named_run, "read_job": lambda run: self.runs[run.path.name].get("job")}
        named |= {"statuses": self.statuses, "holder": self.holder, "query_workers": self.workers}
        for name, value in named.items():
            monkeypatch.setattr(cancel, name, value)
        kill = lambda pid, signum: self.called("kill", pid, signal.Signals(signum).name)  # noqa: E731
        within(cancel, "os", kill=kill)
        within(process, "time", monotonic=lambda: self.now_s, sleep=self.sleep)
        within(cancel, "time", sleep=self.sleep)
        owner = {7: os.getuid()}
        ids = lambda pid: SimpleNamespace(uids=lambda: SimpleNamespace(real=owner.get(pid, os.getuid() + 1)))  # noqa: E731
        within(cancel, "psutil", Process=ids)
        for name in ("cancel", "interrupt"):
            monkeypatch.setattr(cancel.commands, name, lambda jobs, name=name: self.called(name, *jobs))

    def add(self, name, end_s=0.0, **facts):
        self.runs[name] = {"end_s": end_s, **facts}
        return RunFolder(self.folder / name)

    def called(self, *words):
        self.calls.append((self.now_s, *words))

    def sleep(self, seconds):
        self.now_s += seconds

    def statuses(self, runs):
        ended = [self.now_s >= self.runs[run.path.name]["end_s"] for run in runs]
        return [RunStatus(Status.COMPLETED if each else Status.RUNNING, "") for each in ended]

    def named_run(self, run):
        return SimpleNamespace(grace_s=self.runs[run.path.name].get("grace_s", 10.0), run_folder=run)

    def holder(self, run):
        return self.runs[run.path.name].get("pid"), self.runs[run.path.name].get("host", "n1")

    def workers(self, run):
        return self.runs[run.path.name].get("workers", {})


@pytest.fixture
def world(monkeypatch, within, tmp_path):
    return World(monkeypatch, within, tmp_path)


@pytest.mark.parametrize(
    ("is_now", "calls"),
    [
        (False, [(0.0, "kill", 7, "SIGTERM"), (0.5, "interrupt", "17")]),
        (True, [(0.0, "kill", 7, "SIGTERM"), (0.5, "kill", 7, "SIGTERM"), (1.0, "cancel", "17")]),
    ],
)
def test_processes_are_signalled_and_jobs_interrupted_or_cancelled(world, tmp_path, capsys, is_now, calls):
    runs = [world.add("a", 3.0, pid=7), world.add("b", 2.0, job="17"), world.add("c")]
    assert cancel.cancel(runs, is_now) == (True, True)
    assert world.calls == calls
    assert world.now_s == 3.0
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3 runs has already ended.",
        f"{tmp_path}/b: completed",
        f"{tmp_path}/a: completed",
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_of_runs_that_have_finished_only_jobs_of_workers_are_left(world, tmp_path, capsys, count):
    runs = [world.add(name, workers={f"{name}_0": RUNNING, f"{name}_1": ENDED}) for name in "ab"[:count]]
    assert cancel.cancel(runs, False) == (True, True)
    assert world.calls == [(0.0, "cancel", *[f"{name}_0" for name in "ab"[:count]])]
    said = f"the run in {tmp_path}/a has" if count == 1 else "2 of 2 runs have"
    assert capsys.readouterr().out == f"{said} already ended, so there is nothing to cancel.\n"
    runs = [world.add("a", workers=LauncherError("no answer"))]
    world.calls.clear()
    assert cancel.cancel(runs, False) == (True, True)
    assert world.calls == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"host": "n9"}, "from this host. Use collectx cancel on n9."),
        ({"host": socket.gethostname()}, "because its process is not visible here, or belongs to another user"),
        ({"pid": 8}, "process 8 belongs to user"),
    ],
)
def test_a_run_that_is_not_to_be_ended_from_here_is_named_and_the_others_end(world, capsys, facts, words):
    runs = [world.add("a", 5.0, **facts), world.add("b", 2.0, pid=7)]
    assert cancel.cancel(runs, False) == (False, True)
    assert world.calls == [(0.0, "kill", 7, "SIGTERM")]
    assert words in capsys.readouterr().err


def test_a_process_that_ends_meanwhile_is_not_signalled(world, within):
    def gone(pid):
        raise psutil.NoSuchProcess(pid)

    within(cancel, "psutil", Process=gone)
    assert cancel.cancel([world.add("a", 2.0, pid=7)], False) == (True, True)
    assert world.calls == []


def test_jobs_that_take_too_long_are_cancelled_and_then_given_up(world, tmp_path, capsys):
    runs = [world.add("a", 1000.0, job="17"), world.add("b", 12.0, job="18", grace_s=4.0)]
    assert cancel.cancel(runs, False) == (True, False)
    assert world.calls == [(0.0, "interrupt", "17", "18"), (10.0, "cancel", "17", "18")]
    assert world.now_s == 70.0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}/b: completed\n"
    rule = "70 s (checkpoint.grace_s + collector.close_timeout_s + a minute)"
    assert err == f"collectx: {tmp_path}/a did not end within {rule}. To end it at once, add --now.\n"


@pytest.mark.parametrize("is_now", [False, True])
def test_jobs_that_slurm_does_not_end_are_not_waited_for(world, tmp_path, monkeypatch, capsys, is_now):
    def refuse(jobs):
        raise LauncherError("Access/permission denied")

    for name in ("interrupt", "cancel"):
        monkeypatch.setattr(cancel.commands, name, refuse)
    runs = [world.add("a", 1000.0, job="17"), world.add("b", 2.0, pid=7)]
    assert cancel.cancel(runs, is_now) == (True, False)
    assert world.now_s < 5.0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}/b: completed\n"
    assert "denied" in err
    assert "--now" not in err


def test_a_refusal_of_slurm_is_said(capsys):
    def refuse(jobs):
        raise LauncherError("Access denied")

    assert cancel.end_jobs(refuse, [])
    assert not cancel.end_jobs(refuse, ["17"])
    assert capsys.readouterr().err == (
        "collectx: could not end every job: Access denied. To see which are left: collectx status\n"
    )
