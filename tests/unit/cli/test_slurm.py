"""Runs as SLURM jobs, over a stand-in that runs the real batch scripts: arrays, ends, refusals, a second start.

What a job's Python would do is done by `fakeslurm/role.py`, unless a test says otherwise; a real SLURM is in
`tests/slurm`.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakecluster import ROLE, FakeSlurm

from collectx.cli import follow, run, status
from collectx.run import RunFolder, compare

COMMAND = Path(sys.executable).parent / "collectx"
FAST = ["launcher=slurm", f"launcher.python={ROLE}"]
HERE = ["hydra.run.dir=run"]
SWEEP = ["-m", "hydra.sweep.dir=sweep"]


def result(folder: str) -> dict:
    return RunFolder(folder).read_result() or {}


def test_a_run_without_m_is_one_job(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]):
    assert run.main([*FAST, *HERE, "collector.num_workers=3", "collector.frames_per_batch=384"]) == 0
    (script,) = slurm.scripts()
    assert "#SBATCH --ntasks=4\n" in script
    assert "wckey" not in script
    assert "--array" not in script
    out = capsys.readouterr().out
    assert "run: job 100, 4 tasks" in out
    assert "completed" in out
    assert {path.name for path in Path("run").iterdir()} >= {".hydra", "snapshot", "jobs", "logs", "result.json"}
    assert slurm.wait("COMPLETED") == {"100": "COMPLETED"}


def test_what_is_asked_of_slurm(slurm: FakeSlurm):
    asked = ["partition=p", "account=a", "qos=q", "time=30", "mem=4G", "cpus_per_task=2", "gpus=1", "constraint=ib"]
    more = ["exclusive=true", "nodes=2", "container=/image", "setup=['export LEVER=up']", "sbatch={job-name: mine}"]
    options = [f"launcher.{text}" for text in [*asked, *more]]
    assert run.main([*FAST, *HERE, *options, "launcher.wait=false"]) == 0
    (script,) = slurm.scripts()
    wanted = ["partition=p", "account=a", "qos=q", "time=30", "mem=4G", "cpus-per-task=2", "gres=gpu:1", "nodes=2"]
    wanted += ["constraint=ib", "exclusive", "job-name=mine", "no-requeue"]
    assert [line for line in wanted if f"#SBATCH --{line}\n" not in script] == []
    assert "\nexport LEVER=up\n" in script
    assert "--container=/image" in script
    assert "SRUN_CPUS_PER_TASK" in script


def test_equal_points_are_one_array_and_each_has_its_own_number_of_tasks(slurm: FakeSlurm):
    points = ["collector.num_workers=1,2", "seed=0,4", "launcher.max_parallel=1"]
    assert run.main([*FAST, *SWEEP, *points]) == 0
    first, second = slurm.scripts()
    assert ["#SBATCH --ntasks=2\n" in first, "#SBATCH --ntasks=3\n" in second] == [True, True]
    assert all("#SBATCH --array=0-1%1\n" in script for script in (first, second))
    assert set(slurm.wait("COMPLETED")) == {"100_0", "100_1", "102_0", "102_1"}


@pytest.mark.ci
def test_a_failing_point_is_told_with_its_traceback_and_stops_no_other(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
):
    assert run.main([*FAST, *SWEEP, "seed=0,1,3"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()[-4:-1]] == [
        ["seed=0", "completed"],
        ["seed=1", "failed"],
        ["seed=3", "failed"],
    ]
    assert 'seed=1: LeverError: stuck\n  Traceback (most recent call last):\n    File "lever.py"' in err
    assert "seed=3: job 100_2 ended as FAILED" in err
    assert slurm.wait("COMPLETED", "FAILED") == {"100_0": "COMPLETED", "100_1": "FAILED", "100_2": "FAILED"}


def test_a_second_start_submits_what_is_missing_and_no_job_twice(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]):
    assert run.main([*FAST, *SWEEP, "seed=0,1"]) == 1
    slurm.wait("COMPLETED", "FAILED")
    slurm.knobs(hold="Priority")
    assert run.main([*FAST, *SWEEP, "seed=0,1,4", "launcher.wait=false"]) == 0
    waiting = {job: state for job, state in slurm.states().items() if state == "PENDING"}
    assert len(waiting) == 2  # the one that failed, and the new one
    capsys.readouterr()
    assert run.main([*FAST, *SWEEP, "seed=0,1,4", "launcher.wait=false"]) == 0
    assert {job for job, state in slurm.states().items() if state == "PENDING"} == set(waiting)
    assert capsys.readouterr().out.count("of an earlier start is queued") == 2


def test_submit_and_leave_then_look_in(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]):
    slurm.knobs(hold="Resources")
    assert run.main([*FAST, *SWEEP, "seed=0,1", "launcher.wait=false"]) == 0
    out = capsys.readouterr().out
    assert f"look in later: collectx status {Path('sweep').absolute()}" in out
    assert "not run" not in out
    assert status.main(["sweep"]) == 0
    assert "Resources" in (told := capsys.readouterr().out)
    assert told.count("queued") == 2
    slurm.knobs()
    slurm.wait("COMPLETED", "FAILED")
    assert status.main(["sweep"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["completed", "failed"]
    assert "seed=1: LeverError: stuck" in out


def test_what_the_job_runs_was_composed_when_it_was_submitted(slurm: FakeSlurm, tmp_path: Path):
    mine = tmp_path / "conf" / "trainer" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("defaults: [ppo, _self_]\ngamma: 0.5\n")
    slurm.knobs(hold="Priority")
    assert run.main([*FAST, *HERE, "trainer=mine", "launcher.wait=false", "--config-dir", "conf"]) == 0
    mine.write_text("defaults: [ppo, _self_]\ngamma: 0.9\n")
    slurm.knobs()
    slurm.wait("COMPLETED")
    assert "gamma 0.5" in Path("run/logs/job.log").read_text()


def test_a_refusal_is_a_wrong_configuration_in_slurms_own_words(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]):
    slurm.knobs(refuse="Invalid partition name specified")
    assert run.main([*FAST, *HERE, "launcher.partition=nope"]) == 2
    err = capsys.readouterr().err
    assert "Invalid partition name specified" in err
    assert "launcher.partition" in err


def test_without_slurm_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.main(["launcher=slurm", "launcher.nodes=9", "launcher.sbatch={ntasks: 3}"]) == 2
    err = capsys.readouterr().err
    assert "launcher.nodes=9 is more than the 3 tasks" in err
    assert "launcher.sbatch.ntasks" in err
    assert run.main(["launcher=slurm"]) == 2
    assert "no sbatch on its PATH" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Following:
    """The command, as it follows a job that runs until it is cancelled."""

    def __init__(self, wait_until, stdin: int = subprocess.DEVNULL):
        with open("said.txt", "w") as said:
            self.process = subprocess.Popen(
                [COMMAND, "run", *FAST, *HERE, "seed=2"], stdin=stdin, stdout=said, stderr=subprocess.STDOUT
            )
        wait_until(lambda: "job 100 is running" in self.said() and Path("run/is_running").exists(), 90, "it follows")

    def said(self) -> str:
        return Path("said.txt").read_text()

    def end(self, signum: int) -> str:
        """What it has said in the end."""
        self.process.send_signal(signum)
        assert self.process.wait(90) == 130, self.said()
        return self.said()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_where_nobody_can_answer_cancels(slurm: FakeSlurm, wait_until, signum: int):
    assert "cancelling job 100" in Following(wait_until).end(signum)
    assert result("run")["exit_reason"] == "interrupted by SIGTERM"
    assert slurm.wait("CANCELLED")


@pytest.mark.parametrize(("answer", "state"), [("n", "RUNNING"), ("y", "CANCELLED")])
def test_ctrl_c_asks_once_where_somebody_can_answer(slurm: FakeSlurm, wait_until, answer: str, state: str):
    mine, its = pty.openpty()
    command = Following(wait_until, its)
    os.write(mine, f"{answer}\n".encode())
    said = command.end(signal.SIGINT)
    os.close(mine)
    os.close(its)
    assert "cancel job 100? y cancels, n leaves" in said
    assert ("look in later: collectx status" in said) == (answer == "n")
    assert slurm.states() == {"100": state}


@pytest.mark.parametrize("error", [KeyboardInterrupt, follow.Terminated])
def test_what_is_interrupted_before_it_follows_leaves_no_job(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    def interrupted(*arguments: object) -> None:
        raise error

    slurm.knobs(hold="Priority")
    monkeypatch.setattr(follow, "Pursuit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.main([*FAST, *SWEEP, "seed=0,1"])
    assert slurm.wait("CANCELLED").keys() == {"100_0", "100_1"}


def test_another_configuration_is_not_put_into_the_folder_of_a_living_job(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
):
    slurm.knobs(hold="Priority")
    assert run.main([*FAST, *HERE, "launcher.wait=false"]) == 0
    assert run.main([*FAST, *HERE, "launcher.wait=false", "seed=5"]) == 2
    assert "job 100 has not ended" in capsys.readouterr().err
    assert len(slurm.states()) == 1


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_the_same_batches_as_of_a_run_here(slurm: FakeSlurm):
    """The real thing: a trainer and two workers, as tasks of a job."""
    small = ["env=counting", "policy=random", "trainer=meter", "trainer.digest=true"]
    small += ["collector.frames_per_batch=64", "collector.total_frames=256"]
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "9"}  # as from inside another job
    command = [COMMAND, "run", *small, "launcher=slurm", "hydra.run.dir=there"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr + Path("there/logs/job.log").read_text()
    assert slurm.wait("COMPLETED")
    subprocess.run([COMMAND, "run", *small, "hydra.run.dir=here"], timeout=200, stdout=subprocess.DEVNULL, check=True)
    assert compare("here", "there").identical
    joined = [event for event in RunFolder("there").read_events() if event["event"] == "worker_joined"]
    assert sorted(event["worker"] for event in joined) == [0, 1]


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_a_killed_worker_is_started_again_as_a_step(slurm: FakeSlurm, wait_until):
    small = ["env=counting", "env.step_s=0.002", "policy=random", "trainer=meter", "collector=multi_async"]
    small += ["collector.frames_per_batch=64", "collector.total_frames=-1", "collector.on_worker_failure=restart"]
    assert run.main([*small, "launcher=slurm", *HERE, "launcher.wait=false"]) == 0
    events = RunFolder("run").read_events

    def joined() -> list[dict]:
        return [event for event in events() if event["event"] == "worker_joined"]

    wait_until(lambda: len(joined()) == 2, 150, "both have joined")
    killed = joined()[0]
    os.kill(killed["pid"], signal.SIGKILL)
    wait_until(lambda: len(joined()) == 3, 150, "another has joined")
    assert joined()[2]["worker"] == killed["worker"]
    subprocess.run(["scancel", "100"], check=True)
    slurm.wait("CANCELLED")
    wait_until(lambda: result("run").get("status") == "interrupted", 90, "the result")
    assert json.loads(Path("run/jobs/slurm.json").read_text())["job"] == "100"
