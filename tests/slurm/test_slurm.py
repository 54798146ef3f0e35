"""The launcher slurm by the real command: trainer and workers are the tasks of one job on the nodes of the cluster."""

from __future__ import annotations

import itertools
import json
import signal

import pytest
from running import COLLECTX, ENDLESS, SMALL, WATCHED, Run

_THREE_NODES = ["launcher=slurm", "launcher.nodes=3"]
_SMALL = [*SMALL, *_THREE_NODES]
_ENDLESS = [*ENDLESS, *_THREE_NODES]


def test_a_job_of_four_tasks_on_three_nodes_loses_no_frame(run):
    going = run(*_ENDLESS, "env.step_s=0")
    going.wait_for("worker_joined", 3)
    nodes = {going.cluster.node_of(event) for event in going.events("worker_joined")}
    going.wait_for_more(100)
    going.stop()
    assert going.finish() == 0, going.said
    assert {event["worker"] for event in going.events("worker_joined")} == {0, 1, 2}
    assert nodes == set(going.cluster.nodes)
    assert going.result["status"] == "completed"
    assert going.states() == ["COMPLETED"]


def test_a_sync_run_gives_the_batches_of_a_local_one(run):
    digested = ["collector=multi_sync", "trainer.digest=true", "collector.total_frames=9_990"]
    local = run(*SMALL, *digested)
    assert local.finish() == 0, local.said
    expected = local.result["digest"]
    for collector in (["collector=distributed_sync"], ["collector=rpc", "collector.sync=true"]):
        going = run(*_SMALL, *digested, *collector)
        assert going.finish() == 0, going.said
        assert going.result["digest"] == expected


def test_a_worker_may_be_a_collector_of_several_processes(run):
    sizes = ["collector.num_workers=2", "collector.frames_per_batch=1000", "collector.total_frames=100_000"]
    going = run(*WATCHED, *_THREE_NODES, *sizes, "collector=distributed_sync", "collector.num_workers_per_collector=2")
    assert going.finish() == 0, going.said
    assert going.result["frames"] == 100_000
    assert going.states() == ["COMPLETED"]


def test_bytes_may_travel_by_mpi(cluster, run):
    if cluster.login(["srun", "--mpi=pmix", "echo", "it works"], check=False) != "it works\n":
        pytest.skip("srun has no PMIx: Debian's needs libpmix-dev")
    if cluster.kind == "one host":
        pytest.skip("PMIx has one server of a step for each host")
    going = run(*WATCHED, *_THREE_NODES, "collector=multi_sync", "backend=mpi", "launcher.srun.mpi=pmix")
    assert going.finish() == 0, going.said
    assert going.result["frames"] == 99_900
    assert going.states() == ["COMPLETED"]


def _hit(going, fault: str, worker: int = 2) -> dict:
    """Lets a fault happen to a worker, if not said otherwise to the one on the last node, which the trainer is not on.
    Returns its `worker_joined`, and its `node`."""
    going.wait_for("worker_joined", 3)
    (victim,) = [event for event in going.events("worker_joined")[:3] if event["worker"] == worker]
    victim["node"] = going.cluster.node_of(victim)
    going.wait_for_more()
    if fault == "kill":
        going.cluster.on(victim["node"], ["kill", "-KILL", str(victim["pid"])])
    else:
        getattr(going.cluster, fault)(victim["node"])
    return victim


@pytest.mark.parametrize("collector", ["multi_async", "multi_sync", "rpc"])
@pytest.mark.parametrize("faults", [("kill", "crash"), ("cut", "hang")], ids="_".join)
def test_workers_that_are_gone_come_again(cluster, run, faults, collector):
    if cluster.kind == "one host" and "crash" in faults:
        pytest.skip("no node has a name by which it could be seen that it is up")
    going = run(*_ENDLESS, f"collector={collector}", "collector.on_worker_failure=restart")
    for worker, fault in zip((2, 1), faults, strict=True):
        _hit(going, fault, worker)

        def lives(worker: int = worker) -> int:
            return sum(event["worker"] == worker for event in going.events("worker_joined"))

        # A node that hangs looks as if it were up: a first replacement may be lost on it.
        going.wait_until(lambda: lives() == 2, f"worker {worker} comes again after {fault}")
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said
    assert {event["worker"] for event in going.events("worker_failed")} == {1, 2}
    assert going.result["status"] == "completed"


@pytest.mark.parametrize(("fault", "collector"), [("crash", "multi_async"), ("cut", "multi_sync")])
def test_a_run_goes_on_without_a_worker_that_is_gone(run, fault, collector):
    going = run(*_ENDLESS, f"collector={collector}", "collector.on_worker_failure=drop")
    victim = _hit(going, fault)
    assert going.wait_for("worker_failed", 1)["worker"] == victim["worker"]
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said
    assert len(going.events("worker_joined")) == 3
    assert going.result["status"] == "completed"


@pytest.mark.parametrize(("fault", "collector"), [("kill", "multi_sync"), ("hang", "multi_async")])
def test_a_worker_that_is_gone_fails_the_run_and_its_job(run, fault, collector):
    going = run(*_ENDLESS, f"collector={collector}", "collector.on_worker_failure=raise")
    victim = _hit(going, fault)
    assert going.finish() == 1
    assert f"worker {victim['worker']}" in going.said
    assert str(going.folder / "logs" / f"worker-{victim['worker']}.log") in going.said
    if fault == "hang":
        assert "collector.worker_timeout_s" in going.said
        going.cluster.unhang(victim["node"])
    assert going.result["status"] == "failed"
    assert going.states() == ["FAILED"]


def test_the_others_do_not_pause_while_a_node_is_gone(run):
    going = run(*_ENDLESS, "collector.on_worker_failure=restart")
    victim = _hit(going, "cut")
    failed = going.wait_for("worker_failed", 1)
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said
    others = [batch["time"] for batch in going.batches() if batch["workers"][0]["worker"] != victim["worker"]]
    around = [moment for moment in others if failed["time"] - 10 < moment < failed["time"] + 2]
    # A batch of 300 steps takes less than a second; there are two others.
    assert max(late - early for early, late in itertools.pairwise(around)) < 5


_LEVER = """
from pathlib import Path
import gymnasium, numpy

class Lever(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_workers):
        self._is_broken = num_workers == 2 and Path("broken").exists()
        self._steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self._steps += 1
        if self._is_broken and self._steps > 500:
            raise RuntimeError("the lever is broken")
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}
"""


def test_a_sweep_gives_each_point_its_own_resources_and_runs_only_what_is_missing(cluster, run, tmp_path):
    (tmp_path / "lever.py").write_text(_LEVER)
    (tmp_path / "broken").touch()
    sweep = [
        *SMALL,
        "env=gym",
        "env.entry_point=lever:Lever",
        "env.kwargs.num_workers=${collector.num_workers}",
        "launcher=slurm",
        "collector=multi_sync",
        "collector.num_workers=1,2,4",
        "collector.frames_per_batch=400",
        "collector.total_frames=4_000",
        "-m",
    ]
    first = run(*sweep)
    assert first.finish(300) == 1, first.said
    assert "RuntimeError: the lever is broken" in first.said
    assert first.states() == ["COMPLETED", "FAILED", "COMPLETED"]
    shown = ["squeue", "--states=all", "--noheader", "--format=%C", "--sort=i"]
    assert cluster.login([*shown, f"--jobs={','.join(first.jobs)}"]).split() == ["2", "3", "5"]
    assert _status(first, "sweep") == ["completed", "failed", "completed"]
    (tmp_path / "broken").unlink()
    second = run(*sweep)
    assert second.finish(300) == 0, second.said
    assert second.states() == ["COMPLETED"]
    assert _status(second, "sweep") == ["completed"] * 3


def test_equal_points_are_one_array_that_is_followed_by_nobody(cluster, run):
    # 1 of 2 runs at a time, on all of the cluster.
    overrides = ["launcher.wait=false", "launcher.max_parallel=1", "seed=0,1", "launcher.exclusive=true", "-m"]
    going = run(*_ENDLESS, *overrides)
    assert going.finish() == 0, going.said
    first, second = going.jobs
    assert (first.partition("_")[2], second.partition("_")[2]) == ("0", "1")
    assert "collectx status" in going.said
    going.wait_for_state(first, "RUNNING")
    assert _status(going, "sweep") == ["running", "queued"]
    cluster.login(["scancel", first])
    going.wait_for_state(second, "RUNNING")
    assert _status(going, "sweep") == ["interrupted", "running"]
    cluster.lose("n1")
    going.states()
    # Whether the trainer is told to end before it is killed is for SLURM to say.
    assert _status(going, "sweep") in (["interrupted", "failed"], ["interrupted", "interrupted"])


def test_a_cancelled_job_ends_the_command(cluster, run):
    going = run(*_ENDLESS)
    going.wait_for("worker_joined", 3)
    going.wait_for_more(2)
    cluster.login(["scancel", *going.jobs])
    assert going.finish() == 130, going.said
    assert _status(going, "run") == ["interrupted"]


def test_ctrl_c_cancels_the_job(cluster, run):
    going = run(*_ENDLESS)
    going.wait_for("worker_joined", 3)
    going.wait_for_more(2)
    # Nobody is there to be asked.
    going.process.send_signal(signal.SIGINT)
    assert going.finish() == 130, going.said
    assert going.states() == ["CANCELLED"]
    assert going.result["status"] == "interrupted"


def test_a_job_may_submit_another(run):
    outer = ["srun", "--ntasks=2", "--nodes=1", "--cpus-per-task=2", "--gres=gpu:1"]
    going = run(*_SMALL, "hydra.run.dir=run${oc.env:SLURM_PROCID}", "launcher.nodes=2", prefix=[*outer, "--exact"])
    assert going.finish() == 0, going.said
    for folder in ("run0", "run1"):
        assert json.loads((going.cwd / folder / "result.json").read_text())["frames"] == 99_900


def _status(going: Run, folder: str) -> list[str]:
    """What `collectx status` says of each run in a folder."""
    table = going.cluster.login([COLLECTX, "status", folder], cwd=going.cwd)
    rows = [line.split() for line in table.splitlines() if line.startswith(("run  ", "collector.", "seed="))]
    return [row[1] for row in rows if not row[0].endswith(":")]
