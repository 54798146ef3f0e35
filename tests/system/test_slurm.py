"""Jobs over a stand-in for SLURM that runs the real scripts: a command that follows its job and is interrupted, and
`launcher=submitit` with real workers. A real SLURM is in tests/slurm."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COUNTING, collectx, result, start
from fakecluster import ROLE, FakeSlurm

from collectx.run import RunFolder


@pytest.fixture
def slurm(monkeypatch, tmp_path):
    """Its commands on PATH."""
    cluster = FakeSlurm(tmp_path / "slurm", monkeypatch)
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("number", "answer", "state"),
    [(signal.SIGINT, "n", "RUNNING"), (signal.SIGINT, None, "CANCELLED"), (signal.SIGTERM, None, "CANCELLED")],
    ids=["ctrl_c_no", "ctrl_c_without_terminal", "sigterm"],
)
def test_a_command_that_follows_its_job_is_interrupted(slurm, tmp_path, wait_until, number, answer, state):
    mine, its = pty.openpty()
    line = ["run", "launcher=slurm", f"launcher.python={ROLE}", "hydra.run.dir=run"]
    command = start(*line, cwd=tmp_path, stdin=subprocess.DEVNULL if answer is None else its)
    said = (tmp_path / "said.txt").read_text
    wait_until(lambda: "job 100 is running" in said() and (tmp_path / "run" / "is_running").exists(), 150, "it follows")
    os.write(mine, f"{answer}\n".encode())
    command.send_signal(number)
    assert command.wait(150) == 130, said()
    os.close(mine)
    os.close(its)
    assert ("cancel job 100? y cancels, n leaves" in said()) == (answer is not None)
    assert ("look in later: collectx status" in said()) == (state == "RUNNING")
    assert slurm.states() == {"100": state}
    if state == "CANCELLED":
        assert "cancelling job 100" in said()
        assert result(tmp_path / "run")["exit_reason"] == "interrupted by SIGTERM"


@pytest.mark.timeout(400)
def test_workers_of_submitit_are_one_array_and_end_with_the_run(slurm, tmp_path):
    size = ["collector.num_workers=2", "env.num_envs=1", "collector.frames_per_batch=100"]
    line = [*COUNTING, "launcher=submitit", *size, "collector.total_frames=10_000", "hydra.run.dir=run"]
    assert "workers are submitted: job 100_0 to 100_1" in collectx("run", *line, cwd=tmp_path).stdout
    assert slurm.wait("COMPLETED") == {"100_0": "COMPLETED", "100_1": "COMPLETED"}
    files = RunFolder(tmp_path / "run")
    joined = [event for event in files.read_events() if event["event"] == "worker_joined"]
    assert sorted((event["worker"], event["job"]) for event in joined) == [(0, "100_0"), (1, "100_1")]
    assert result(files.path)["frames"] == 10_000
    assert not files.secret.exists()


SCRIPT = """
import collectx, gymnasium

@collectx.submitit_delayed_launcher(num_jobs=2)
def main():
    collectx.DistributedCollector(
        [lambda: gymnasium.make("CartPole-v1")] * 3, frames_per_batch=30, total_frames=300, launcher="submitit_delayed"
    )

if __name__ == "__main__":
    main()
"""


@pytest.mark.timeout(400)
def test_a_script_that_fails_ends_its_workers_and_says_why(slurm, tmp_path):
    Path(tmp_path, "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "3 workers, but submitit_delayed_launcher(num_jobs=2): give both the same number" in said
    assert "job 100 of the trainer: FAILED" in said
    assert set(slurm.wait("FAILED", "CANCELLED").values()) == {"FAILED", "CANCELLED"}
