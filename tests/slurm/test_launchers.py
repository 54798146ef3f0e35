"""The launchers slurm, submitit and submitit_delayed by the real command: the same batches, and no job left."""

from __future__ import annotations

import json

import pytest
from cluster import Cluster
from machines import wait_until
from running import COLLECTX, ENDLESS, LAUNCHERS, SMALL, Run, nightly

_RPC = ["collector=rpc", "collector.sync=true"]
_MPI = ["backend=mpi", "launcher.srun.mpi=pmix"]


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [
        ("slurm", []),
        ("submitit", []),
        ("submitit_delayed", []),
        nightly("slurm", _MPI),
        *(nightly(launcher, _RPC) for launcher in LAUNCHERS),
    ],
)
def test_batches_are_those_of_a_local_run(cluster, run, digest, launcher, backend):
    if backend == _MPI and cluster.login(["srun", "--mpi=pmix", "echo", "it works"], check=False) != "it works\n":
        pytest.skip("srun has no PMIx: Debian's needs libpmix-dev")
    started = run(*SMALL, *LAUNCHERS[launcher], *backend)
    assert started.finish() == 0, started.output
    assert started.result["status"] == "completed"
    assert started.result["frames"] == 10_000
    assert started.result["digest"] == digest
    joined = started.events("worker_joined")
    assert {event["worker"] for event in joined} == {0, 1}
    assert len({event["host"] for event in joined}) == 2
    jobs = sorted({event["job"] for event in joined})
    assert len(jobs) == (2 if launcher == "submitit" else 1)
    assert {line for state in started.states(*jobs) for line in state.split()} == {"COMPLETED"}


@pytest.mark.nightly
def test_a_worker_may_be_a_collector_of_several_processes(run):
    nested = ["collector=distributed_sync", "collector.num_workers_per_collector=2"]
    started = run(*ENDLESS, *LAUNCHERS["slurm"], *nested)
    started.wait_for_more(20)
    started.complete()
    assert started.states() == ["COMPLETED"]


@pytest.mark.nightly
def test_a_job_may_submit_another(run):
    """Two trainers in a job with GPUs, each of which submits a job."""
    outer = ["srun", "--ntasks=2", "--nodes=1", "--cpus-per-task=2", "--gres=gpu:1", "--exact"]
    folder = "hydra.run.dir=run${oc.env:SLURM_PROCID}"
    started = run(*SMALL, "launcher=slurm", folder, prefix=outer)
    assert started.finish() == 0, started.output
    assert [json.loads(path.read_text())["frames"] for path in started.cwd.glob("run?/result.json")] == [10_000] * 2


@pytest.mark.nightly
def test_a_job_may_be_the_trainer_of_workers_that_are_jobs(run):
    outer = ["srun", "--ntasks=1", "--cpus-per-task=2", "--gres=gpu:1", "--job-name=outer"]
    started = run(*ENDLESS, *LAUNCHERS["submitit"], prefix=outer)
    joined = started.wait_for("worker_joined", 2)
    started.wait_for_more()
    started.complete()
    assert started.states(*(event["job"] for event in joined)) == ["COMPLETED"] * 2


_LEVER = """
from pathlib import Path
import gymnasium, numpy

class Lever(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_workers):
        self._is_broken = num_workers == 2 and Path("broken").exists()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        if self._is_broken:
            raise RuntimeError("the lever is broken")
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}
"""


@pytest.mark.nightly
def test_a_sweep_gives_each_point_its_own_resources_and_runs_only_what_is_missing(cluster, run, tmp_path):
    (tmp_path / "lever.py").write_text(_LEVER)
    (tmp_path / "broken").touch()
    env = ["env=gym", "env.entry_point=lever:Lever", "env.kwargs.num_workers=${collector.num_workers}"]
    sweep = [*SMALL, *env, "launcher=slurm", "collector.num_workers=1,2,4", "-m"]
    first = run(*sweep)
    assert first.finish() == 1, first.output
    assert "RuntimeError: the lever is broken" in first.output
    assert first.states() == ["COMPLETED", "FAILED", "COMPLETED"]
    num_cpus = ["squeue", "--states=all", "--noheader", "--format=%C", "--sort=i", f"--jobs={','.join(first.jobs)}"]
    assert cluster.login(num_cpus).split() == ["2", "3", "5"]
    assert first.status("sweep") == ["completed", "failed", "completed"]
    (tmp_path / "broken").unlink()
    second = run(*sweep)
    assert second.finish() == 0, second.output
    assert second.states() == ["COMPLETED"]
    assert second.status("sweep") == ["completed"] * 3


@pytest.mark.nightly
def test_equal_points_are_one_array_that_is_followed_by_nobody(cluster, run):
    # 1 of 2 runs at a time, on whole nodes.
    array = ["launcher.wait=false", "launcher.max_parallel=1", "seed=0,1", "launcher.exclusive=true", "-m"]
    started = run(*ENDLESS, *LAUNCHERS["slurm"], *array)
    assert started.finish() == 0, started.output
    first, second = started.jobs
    assert (first.partition("_")[2], second.partition("_")[2]) == ("0", "1")
    assert "collectx status" in started.output
    started.wait_for_state(first, "RUNNING")
    assert started.status("sweep") == ["running", "queued"]
    cluster.login(["scancel", first])
    started.wait_for_state(second, "RUNNING")
    assert started.status("sweep") == ["interrupted", "running"]
    # The node of its trainer. Whether SLURM tells the trainer to end before it is killed is not defined.
    cluster.lose(cluster.login(["squeue", "--noheader", f"--jobs={second}", "-o", "%B"]).strip())
    started.states()
    assert started.status("sweep") in (["interrupted", "failed"], ["interrupted", "interrupted"])


@pytest.mark.nightly
@pytest.mark.usefixtures("shared_cluster")
def test_status_knows_a_job_that_only_accounting_remembers():
    with Cluster.up(num_nodes=1, accounting=True) as cluster:
        left = ["collector.num_workers=1", "launcher=slurm", "launcher.wait=false"]
        started = Run(cluster, cluster.shared, [*ENDLESS, *left])
        assert started.finish() == 0, started.output
        (job,) = started.jobs
        started.wait_for_state(job, "RUNNING")
        cluster.login(["scancel", job])
        ask = ["sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job}"]
        wait_until(lambda: cluster.login(ask).split()[:1] == ["CANCELLED"], 120, "the job's end")
        wait_until(lambda: job not in cluster.login(["squeue", "--states=all"]), 180, "the controller to forget it")
        assert f"job {job} ended as CANCELLED" in cluster.login([COLLECTX, "status", "run"], cwd=started.cwd)
