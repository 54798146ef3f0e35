"""launcher=submitit by the real command, over a stand-in for SLURM that runs the workers' real script: join, failure,
replacement, cancellation. A real SLURM is in `tests/slurm`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakecluster import FakeSlurm

from collectx.run import RunFolder

# Real processes behind the stand-in.
pytestmark = [pytest.mark.ci, pytest.mark.timeout(400)]

COMMAND = Path(sys.executable).parent / "collectx"
COUNTING = [
    "env=counting",
    "env.num_envs=1",
    "policy=random",
    "collector=multi_async",
    "collector.frames_per_batch=100",
]
SUBMITIT = ["launcher=submitit", "collector.num_workers=2", "hydra.run.dir=run", *COUNTING]
# Looks at every frame, and kills a worker once.
KILLER = """
import json, os, signal
from collectx.env.counting import StreamChecker

class Killer:
    def train(self, collection):
        checker, joined = StreamChecker(restarts=True), []
        for index, batch in enumerate(collection):
            checker.take(batch)
            joined = [line for line in open("run/events.jsonl") if "worker_joined" in line]
            if index == 5:
                os.kill(json.loads(joined[0])["pid"], signal.SIGKILL)
            if len(joined) == 3:
                break
"""


def start(*overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "run", *SUBMITIT, *overrides], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str], status: int, timeout_s: float = 150) -> str:
    """What it printed; it must end with that status."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(process.communicate()[0]) from None
    assert process.returncode == status, said
    return said


def test_workers_are_one_array_and_end_with_the_run(slurm: FakeSlurm):
    said = finish(start("trainer=meter", "collector=multi_sync", "collector.total_frames=10_000"), 0)
    assert "workers are submitted: job 100_0 to 100_1" in said
    assert slurm.wait("COMPLETED") == {"100_0": "COMPLETED", "100_1": "COMPLETED"}
    joined = [event for event in RunFolder("run").read_events() if event["event"] == "worker_joined"]
    assert sorted((event["worker"], event["job"]) for event in joined) == [(0, "100_0"), (1, "100_1")]
    assert (RunFolder("run").read_result() or {})["frames"] == 10_000


def test_a_killed_worker_is_submitted_again_and_nothing_is_lost_or_torn(slurm: FakeSlurm):
    Path("killer.py").write_text(KILLER)
    endless = ["collector.total_frames=-1", "env.step_s=0.001", "collector.on_worker_failure=restart"]
    said = finish(start("trainer=custom", "trainer.target=killer:Killer", *endless), 0)
    assert "is started again" in said
    states = slurm.wait("COMPLETED", "FAILED", "CANCELLED")
    assert len(states) == 3
    assert sorted(states.values())[:2] == ["COMPLETED", "COMPLETED"]


def test_a_job_that_is_cancelled_in_the_queue_ends_the_run(slurm: FakeSlurm, wait_until):
    slurm.knobs(hold="Resources")
    process = start("trainer=meter", "collector.total_frames=10_000")
    wait_until(lambda: "100_1" in slurm.states(), 90, "both jobs wait")
    subprocess.run(["scancel", "100_1"], check=True)
    said = finish(process, 1)
    assert "worker 1 (job 100_1: CANCELLED" in said
    assert "ended before it had joined the trainer" in said
    assert slurm.wait("CANCELLED").keys() == {"100_0", "100_1"}


def test_who_waits_is_said_and_for_how_long_is_limited(slurm: FakeSlurm):
    slurm.knobs(hold="Resources")
    said = finish(start("trainer=meter", "collector.total_frames=10_000", "launcher.queue_timeout_s=15"), 1)
    assert "2 of 2 workers wait in the queue: worker 0, 1: PENDING (Resources: what it asks for is in use)" in said
    assert "has not joined for 15 s (launcher.queue_timeout_s=15)" in said
    assert set(slurm.wait("CANCELLED")) == {"100_0", "100_1"}


def test_ctrl_c_leaves_no_job(slurm: FakeSlurm, wait_until):
    process = start("trainer=meter", "collector.total_frames=-1")
    events = RunFolder("run").read_events
    wait_until(lambda: sum(event["event"] == "worker_joined" for event in events()) == 2, 150, "both have joined")
    process.send_signal(signal.SIGINT)
    finish(process, 130)
    slurm.wait("COMPLETED", "CANCELLED")


def test_a_refused_submission_is_a_wrong_configuration(slurm: FakeSlurm):
    slurm.knobs(refuse="Invalid partition name specified")
    said = finish(start("trainer=meter", "collector.total_frames=10_000"), 2)
    assert "Invalid partition name specified: choose another with launcher.partition" in said


def test_without_slurm_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.fspath(COMMAND.parent))
    said = finish(start("trainer=meter"), 2)
    assert "launcher=submitit: this machine has no sbatch on its PATH" in said
    assert not Path("run").exists()


DELAYED = """
import collectx, gymnasium

def make():
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")

@collectx.submitit_delayed_launcher(num_jobs=2, submitit_main_conf={{"slurm_cpus_per_task": 1}},
                                    submitit_collection_conf={{"timeout_min": 5}})
def main():
    with collectx.DistributedCollector(
        [make] * {num_workers}, frames_per_batch=20, total_frames=200, sync=True, launcher="submitit_delayed"
    ) as collector:
        print("frames", sum(batch.numel() for batch in collector))

if __name__ == "__main__":
    main()
"""


def script(**changes: int) -> subprocess.Popen[str]:
    Path("script.py").write_text(DELAYED.format(**{"num_workers": 2} | changes))
    return subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_script_and_its_workers_are_submitted_together(slurm: FakeSlurm):
    said = finish(script(), 0)
    assert "job 100, its workers 101_0, 101_1" in said
    assert "frames 200\n" in said
    assert set(slurm.wait("COMPLETED", "CANCELLED")) == {"100", "101_0", "101_1"}
    trainer, workers = slurm.scripts()
    assert "--cpus-per-task=1" in trainer
    assert "--time=5" in workers


def test_a_script_that_fails_ends_its_workers_and_says_why(slurm: FakeSlurm):
    said = finish(script(num_workers=3), 1)
    assert "3 workers, but submitit_delayed_launcher(num_jobs=2): give both the same number" in said
    assert "job 100 of the trainer: FAILED" in said
    assert set(slurm.wait("FAILED", "CANCELLED").values()) == {"FAILED", "CANCELLED"}


def test_a_collector_without_jobs_says_how_to_get_them(slurm: FakeSlurm):
    from collectx import DistributedCollector
    from collectx.errors import ConfigError

    with pytest.raises(ConfigError, match="submitit_delayed_launcher"):
        DistributedCollector([dict], frames_per_batch=20, launcher="submitit_delayed")
