"""The launchers slurm, submitit and submitit_delayed by the real command: the same batches, and no job left."""

import pytest
from running import ENDLESS, LAUNCHERS, SMALL, nightly

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
    assert started.result["digest"] == digest
    joined = started.events("worker_joined")
    assert {event["worker"] for event in joined} == {0, 1}
    assert len({event["host"] for event in joined}) == 2
    jobs = sorted({event["job"] for event in joined})
    assert len(jobs) == (2 if launcher == "submitit" else 1)
    assert set(started.states(*jobs)) == {"COMPLETED"}


@pytest.mark.nightly
def test_inside_an_allocation_a_run_is_a_step_of_it(cluster, run, digest):
    # The run has fewer tasks than the allocation has nodes.
    started = run(*SMALL, "launcher=slurm", inside=["salloc", "--nodes=4", "--ntasks=4"])
    assert started.finish() == 0, started.output
    assert "no job is submitted" in started.output
    assert started.result["digest"] == digest
    joined = started.events("worker_joined")
    (job,) = {event["job"] for event in joined}
    assert {event["worker"]: event["host"] for event in joined} == {0: "n2", 1: "n3"}
    assert started.states(job) == ["COMPLETED"]


@pytest.mark.nightly
def test_equal_points_of_a_sweep_are_one_array_and_a_second_start_runs_only_what_is_missing(cluster, run):
    sweep = [*ENDLESS, "launcher=slurm", "launcher.max_parallel=1", "collector.num_workers=1,2", "seed=0,1", "-m"]
    first = run(*sweep)
    first.wait_until(lambda: len(first.jobs) == 4, "all points are submitted")
    assert [job.partition("_")[2] for job in first.jobs] == ["0", "1"] * 2
    waiting = ["queued"] * 3  # the second array waits for the first
    first.wait_until(lambda: first.status() == ["running", *waiting], "the first point runs")
    cluster.login(["scancel", first.jobs[0]])
    (first.cwd / "stop").touch()
    assert first.finish() in (1, 130), first.output
    assert first.states() == ["CANCELLED", "COMPLETED", "COMPLETED", "COMPLETED"]
    num_cpus = cluster.squeue("--states=all", "--format=%C", "--sort=i", f"--jobs={','.join(first.jobs)}")
    assert num_cpus == ["2", "2", "3", "3"]
    assert first.status() == ["interrupted", "completed", "completed", "completed"]
    second = run(*sweep)
    assert second.finish() == 0, second.output
    assert second.states() == ["COMPLETED"]
    assert second.status() == ["completed"] * 4
