"""The shell around every task of a SLURM job, and what the trainer learns from its words in the job's log."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from collectx.config import SlurmLauncherConfig
from collectx.launcher.slurm import Workers
from collectx.launcher.tasks import Task, Tasks, role


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with a blank in its name."""
    path = tmp_path / "a run"
    for each in ("jobs", "logs"):
        (path / each).mkdir(parents=True)
    (path / "logs" / "job.log").touch()  # as the batch script does
    return path


def play(folder: Path, rank: int, python: str) -> int:
    """Runs a task; what it says goes to the job's log. Returns its exit status."""
    environment = {**os.environ, "SLURM_PROCID": str(rank), "SLURM_JOB_ID": "100", "run": str(folder)}
    environment.pop("SLURM_RESTART_COUNT", None)
    with open(folder / "logs" / "job.log", "ab") as log:
        return subprocess.run(
            ["bash", "-c", role(python)], env=environment, stdout=log, stderr=log, timeout=60
        ).returncode


def stand_in(folder: Path, text: str) -> str:
    """A program in the place of Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def is_readable(task: Task, timeout_s: float) -> bool:
    return bool(select.select([task.sentinel], [], [], timeout_s)[0])


@pytest.fixture
def workers(folder: Path) -> Workers:
    log = folder / "logs"
    command = [sys.executable, "-m", "task"]
    return Workers(SlurmLauncherConfig(), command, {}, log / "job.log", 0, lambda worker: log / f"worker-{worker}.log")


@pytest.mark.parametrize(
    ("python", "how", "last"),
    [
        (None, "ended with status 127", "/nowhere/python: No such file or directory"),
        ("echo 'ImportError: no torch' >&2; exit 1", "ended with status 1", "ImportError: no torch"),
        ("echo 'at work'; kill -KILL $$", "was killed by signal 9", "at work"),
    ],
)
def test_a_worker_that_fails_is_known_with_its_host_and_its_last_words(
    folder: Path, workers: Workers, python: str | None, how: str, last: str
):
    lost, other = workers.start(1, 0), workers.start(0, 0)
    assert workers.describe(1) == f"worker 1 (log: {folder}/logs/worker-1.log)"
    assert play(folder, 2, "/nowhere/python" if python is None else stand_in(folder, python)) != 0
    assert isinstance(lost, Task)
    assert is_readable(lost, 60)
    said = workers.describe(1)
    assert said.startswith(
        f"worker 1 (task 2 on {socket.gethostname()} {how}; log: {folder}/logs/worker-1.log, which ends: "
    )
    assert last in said
    assert other.exitcode is None
    assert workers.describe(0) == f"worker 0 (log: {folder}/logs/worker-0.log)"


def test_a_run_folder_that_the_node_does_not_see_is_said(folder: Path, workers: Workers, tmp_path: Path):
    task = workers.start(1, 0)
    environment = {**os.environ, "SLURM_PROCID": "2", "SLURM_JOB_ID": "100", "run": str(tmp_path / "elsewhere")}
    with open(folder / "logs" / "job.log", "ab") as log:
        subprocess.run(["bash", "-c", role(sys.executable)], env=environment, stdout=log, stderr=log, timeout=60)
    assert isinstance(task, Task)
    assert is_readable(task, 60)
    assert "a file system that all nodes share (hydra.run.dir)" in workers.describe(1)


def test_the_trainer_leaves_its_status_and_a_worker_that_ends_well_says_nothing(folder: Path):
    assert play(folder, 0, stand_in(folder, "exit 3")) == 3
    assert (folder / "jobs" / "exit_status.100").read_text() == "3\n"
    assert play(folder, 1, stand_in(folder, "exit 0")) == 0
    assert (folder / "logs" / "job.log").read_text() == ""


def test_only_whole_words_of_this_start_count(folder: Path):
    log = folder / "logs" / "job.log"
    log.write_text("collectx: task 1 on n1: status 1\n")
    tasks = Tasks(log, log.stat().st_size, lambda: ["n1", "n2"], 1)
    first, second = tasks.watch(0), tasks.watch(1)
    with open(log, "a") as file:
        file.write("collectx: task 2 on n2: status 12")
        file.flush()
        assert not is_readable(second, 1.0)
        file.write("7\nsrun: error: n2: task 2: Killed\n")
    assert is_readable(second, 60)
    assert second.exitcode == 127
    assert str(second) == "task 2 on n2 ended with status 127"
    assert first.exitcode is None


@pytest.mark.parametrize(
    ("line", "first", "failed"),
    [
        ("srun: error: n2: task 2: Killed", 1, {1: "task 2 on n2 is gone: srun says 'Killed'"}),
        ("srun: error: n2: task 1: Killed", 0, {1: "task 2 on n2 is gone: srun says 'Killed'"}),
        # The trainer, alone on its node in its part of the job.
        ("srun: error: n1: task 0: Killed", 0, {}),
        (
            "srun: error: n3: tasks 3-4: Exited with exit code 2",
            1,
            {2: "task 3 on n3 ended with status 2", 3: "task 4 on n3 ended with status 2"},
        ),
        (
            "srun: error: Node failure on n3",
            1,
            {
                2: "task 3 on n3 is gone: srun says 'Node failure on n3'",
                3: "task 4 on n3 is gone: srun says 'Node failure on n3'",
            },
        ),
        ("srun: error: n9: task 2: Killed", 1, {}),
    ],
)
def test_what_srun_says_is_understood(
    folder: Path, line: str, first: int, failed: dict[int, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("collectx.launcher.sbatch.hostnames", lambda nodes: [nodes])
    tasks = Tasks(folder / "logs" / "job.log", 0, lambda: ["n0", "n2", "n3", "n3", "n0"], first)
    handles = [tasks.watch(worker) for worker in range(5)]
    # The last line is understood after the first.
    (folder / "logs" / "job.log").write_text(f"{line}\ncollectx: task 5 on n0: status 1\n")
    assert is_readable(handles[4], 60)
    assert {worker: str(handle) for worker, handle in enumerate(handles[:4]) if handle.exitcode} == failed
