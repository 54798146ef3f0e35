"""The collectors as a library: a trainer on the login host, or in a job, whose workers are SLURM jobs."""

import sys

import pytest
from machines import wait_until
from running import nightly

from collectx.run import RunFolder

_SCRIPT = """
import subprocess
from pathlib import Path
import collectx, gymnasium

def make():
    return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")

def collect(batches, num_joined):
    while Path("run", "events.jsonl").read_text().count('"worker_joined"') < num_joined:
        next(batches)
    for _ in range(5):
        assert next(batches).shape == ((2, 3, 20) if SYNC else (3, 40))
    print("joined", num_joined)

if __name__ == "__main__":
    with collectx.COLLECTOR(
        [make] * 2, frames_per_batch=120, total_frames=-1, sync=SYNC, launcher="submitit",
        slurm_kwargs={"timeout_min": 10, "slurm_cpus_per_task": 1}, folder="run", on_worker_failure="restart",
        worker_timeout_s=20.0,
    ) as collector:
        batches = iter(collector)
        collect(batches, 2)
        subprocess.run(["scancel", "--name=run-worker"], check=True)
        collect(batches, 4)
"""


def _play(cluster, folder, script, **values):
    """Runs the script and returns what it prints. When it has ended, so have its jobs."""
    for name, value in values.items():
        script = script.replace(name, str(value))
    (folder / "script.py").write_text(script)
    try:
        return cluster.login([sys.executable, "script.py"], timeout=600, cwd=folder)
    finally:
        wait_until(lambda: cluster.jobs() == [], 90, "all jobs to end")


@pytest.mark.parametrize(
    ("collector", "sync"),
    [("DistributedCollector", True), nightly("DistributedCollector", False), nightly("RPCCollector", True)],
)
def test_cancelled_workers_are_replaced_and_end_with_the_collector(cluster, tmp_path, collector, sync):
    assert _play(cluster, tmp_path, _SCRIPT, COLLECTOR=collector, SYNC=sync) == "joined 2\njoined 4\n"


_DELAYED = """
import collectx, gymnasium

def make():
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")

@collectx.submitit_delayed_launcher(NUM_JOBS, framework="FRAMEWORK", submitit_main_conf={"gpus_per_node": 1},
                                    submitit_collection_conf={"slurm_nodelist": "n2"})
def main():
    with collectx.COLLECTOR(
        [make] * 2, frames_per_batch=20, total_frames=200, sync=True, launcher="submitit_delayed"
    ) as collector:
        print("frames", sum(batch.numel() for batch in collector))

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("framework", "collector"), [("distributed", "DistributedCollector"), ("rpc", "RPCCollector")])
def test_a_script_and_its_workers_are_submitted_together(cluster, tmp_path, framework, collector):
    assert "frames 200\n" in _play(cluster, tmp_path, _DELAYED, NUM_JOBS=2, FRAMEWORK=framework, COLLECTOR=collector)
    (folder,) = tmp_path.glob("outputs/*/*")
    joined = [event for event in RunFolder(folder).read_events() if event["event"] == "worker_joined"]
    assert [event["host"] for event in joined] == ["n2", "n2"]


@pytest.mark.nightly
def test_a_script_that_fails_ends_its_workers_and_says_why(cluster, tmp_path):
    with pytest.raises(RuntimeError, match=r"the trainer's job \d+ ended as FAILED") as caught:
        _play(cluster, tmp_path, _DELAYED, NUM_JOBS=3, FRAMEWORK="distributed", COLLECTOR="DistributedCollector")
    assert (
        "the collector has 2 workers, but submitit_delayed_launcher has num_jobs=3. Pass the same number to both"
        in str(caught.value)
    )
