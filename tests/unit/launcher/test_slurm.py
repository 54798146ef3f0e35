"""What the trainer of a SLURM job knows of its nodes, and the steps by which it starts workers again."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from fakecluster import FakeSlurm

from collectx.config import SlurmLauncherConfig
from collectx.errors import LauncherError
from collectx.launcher import slurm
from collectx.launcher.jobs import JobState
from collectx.launcher.tasks import role


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cluster = FakeSlurm(tmp_path / "slurm", monkeypatch)
    # As in a task of job 100.
    monkeypatch.setenv("FAKESLURM_JOB", "100")
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("1", ["n1"]),
        ("2,1", ["n1", "n1", "n2"]),
        ("1(x3)", ["n1", "n2", "n3"]),
        ("2(x2),1", ["n1", "n1", "n2", "n2", "n3"]),
    ],
)
def test_the_node_of_every_task(fake: FakeSlurm, counts: str, expected: list[str]):
    environment = {"SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_TASKS_PER_NODE": counts}
    assert slurm.layout(environment) == expected


def test_a_host_is_up_if_it_answers():
    assert slurm.is_up("127.0.0.1")
    assert not slurm.is_up("no-such-host.invalid")


def is_readable(descriptor: int, timeout_s: float) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])


def test_a_step_tells_when_it_has_ended(fake: FakeSlurm, tmp_path: Path):
    step = slurm.Step(
        lambda: ["srun", "--overlap", "--ntasks=1", sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log"
    )
    assert is_readable(step.sentinel, 100)
    step.join(100)
    assert step.exitcode == 3


def test_a_step_that_nobody_wants_ends(fake: FakeSlurm, tmp_path: Path, wait_until):
    code = f"import time; open({str(tmp_path / 'started')!r}, 'w'); time.sleep(100)"
    step = slurm.Step(lambda: ["srun", "--overlap", "--ntasks=1", sys.executable, "-c", code], tmp_path / "log")
    wait_until((tmp_path / "started").exists, 100, "the step runs")
    assert not is_readable(step.sentinel, 0)
    assert step.exitcode is None
    step.terminate()
    step.join(100)
    assert step.exitcode not in (None, 0)


def test_a_step_that_cannot_be_begun_has_ended(fake: FakeSlurm, tmp_path: Path):
    def refuse() -> list[str]:
        raise LauncherError("scontrol does not answer")

    step = slurm.Step(refuse, tmp_path / "log")
    assert is_readable(step.sentinel, 100)
    step.join(100)
    assert step.exitcode == 1


def test_what_slurm_has_forgotten_has_ended(fake: FakeSlurm, tmp_path: Path):
    script = tmp_path / "job.sh"
    (job,) = slurm.submit(script, "#!/bin/bash\n#SBATCH --ntasks=1\nexit 3\n", 1)
    fake.wait("FAILED")
    assert slurm.states([job])[job] == JobState("FAILED", True, True, "", os.uname().nodename)
    fake.knobs(forget=True)
    assert slurm.states([job]) == {}
    fake.knobs(forget=True, accounting=True)
    assert slurm.states([job])[job].word == "FAILED"
    fake.knobs(silent=True)
    with pytest.raises(LauncherError, match="contact slurm controller"):
        slurm.states([job])


def test_a_worker_comes_again_on_its_node_or_on_the_next_that_is_up(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    cfg = SlurmLauncherConfig(srun={"mpi": "none"}, container=None)
    environment = {"SLURM_JOB_ID": "100", "SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_TASKS_PER_NODE": "2,1(x2)"}
    logs = tmp_path / "job.log", 0, lambda worker: tmp_path / f"worker-{worker}.log"
    place = slurm.Workers(cfg, ["python", "-m", "task"], environment, *logs)
    monkeypatch.setattr(slurm, "is_up", lambda host: True)
    words = place._step(1, 1)
    assert words[0] == "srun"
    assert {"--jobid=100", "--overlap", "--ntasks=1", "--mpi=none"} <= set(words)
    assert words[-4:] == ["python", "-m", "task", "1"]

    def nodes() -> list[str]:
        steps = [place._step(1, life) for life in (1, 2, 3, 4)]
        return [word.partition("=")[2] for step in steps for word in step if word.startswith("--nodelist=")]

    assert nodes() == ["n2", "n3", "n1", "n2"]
    monkeypatch.setattr(slurm, "is_up", lambda host: host != "n2")
    assert nodes() == ["n3", "n3", "n1", "n3"]


def test_a_job_that_is_still_ending_in_the_folder_is_not_taken_for_this_one(tmp_path: Path):
    """The trainer of another job ends while this one's roles are at work."""
    for each in ("jobs", "logs"):
        (tmp_path / each).mkdir()
    roles = tmp_path / "roles.sh"
    roles.write_text(f"export run={tmp_path}\nSLURM_JOB_ID=1 SLURM_PROCID=0 {role('true')}\nsleep 3\nexit 7\n")
    script = slurm.batch([tmp_path], [], [], [], f"bash {roles}", 0.0)
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "2"}
    assert subprocess.run(["bash", "-c", script], env=environment, timeout=60).returncode == 7
