"""The launchers slurm, submitit and submitit_delayed by the real command: the same batches, and no job left."""

import subprocess
from pathlib import Path

import pytest
from commands import COMMAND
from machines import wait_until
from running import ENDLESS, LAUNCHERS, SMALL, nightly

from collectx.run import RunFolder
from collectx.run.folder.layout import runs_below

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


_ASKING = """
import logging
import gymnasium
import hydra
from hydra.core.hydra_config import HydraConfig

def make():
    print("FOLDERS", hydra.utils.get_original_cwd(), HydraConfig.get().runtime.output_dir, flush=True)
    logging.getLogger(__name__).debug("made")
    return gymnasium.make("CartPole-v1")
"""


@pytest.mark.parametrize("launcher", ["slurm", nightly("submitit")])
def test_envs_of_jobs_ask_hydra_and_log_as_the_command_says(run, tmp_path, launcher):
    (tmp_path / "asking.py").write_text(_ASKING)
    words = ["env=gym", "env.entry_point=asking:make", "hydra/job_logging=default", "hydra.verbose=true"]
    started = run(*SMALL, *LAUNCHERS[launcher], *words)
    assert started.finish() == 0, started.output
    logs = [started.files.worker_log(0), *[started.files.log("job")] * (launcher == "slurm")]
    for log in logs:
        lines = log.read_text().splitlines()
        assert f"FOLDERS {tmp_path} {started.files.path}" in lines
        assert any(line.endswith("[asking][DEBUG] - made") for line in lines)


# Each module takes 15 ms longer in the trainer or in the workers, as on a file system that many processes read at once.
_COLD = """
import os, sys, time

class Cold:
    def find_spec(self, *names):
        time.sleep(0.015)

if os.environ.get("SLURM_PROCID", "none") in "{}":
    sys.meta_path.insert(0, Cold())
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("ranks", "log"), [("0", "job"), ("12", "worker-0")], ids=["trainer", "workers"])
def test_imports_may_take_longer_than_the_limit_of_a_start(run, tmp_path, ranks, log):
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold" / "sitecustomize.py").write_text(_COLD.format(ranks))
    words = [*SMALL, *LAUNCHERS["slurm"], "collector.start_timeout_s=8"]
    started = run(*words, inside=["env", f"PYTHONPATH={tmp_path / 'cold'}"])
    assert started.finish() == 0, started.output
    # The first line comes after a second, the others every 5 s.
    assert started.files.log(log).read_text().count("starting (importing ") >= 3


@pytest.mark.nightly
def test_inside_an_allocation_a_run_is_a_step_of_it(cluster, run, digest):
    # The run has fewer tasks than the allocation has nodes.
    started = run(*SMALL, "launcher=slurm", inside=["salloc", "--nodes=4", "--ntasks=4"])
    assert started.finish() == 0, started.output
    assert "so launcher=slurm runs steps of that job" in started.output
    assert started.result["digest"] == digest
    joined = started.events("worker_joined")
    (job,) = {event["job"] for event in joined}
    assert {event["worker"]: event["host"] for event in joined} == {0: "n2", 1: "n3"}
    assert started.states(job) == ["COMPLETED"]


@pytest.mark.nightly
def test_a_sweep_without_a_folder_is_cancelled_as_a_whole_or_in_part_and_continued(cluster, run):
    words = [word for word in SMALL if not word.startswith("hydra.")]
    words += ["collector.num_workers=1", "collector.frames_per_batch=200", "collector.total_frames=4000"]
    words += ["env.step_s=0.003", "launcher=slurm", "-m", "seed=0,1,2"]
    first = run(*words, "launcher.wait=false", "launcher.max_parallel=1")
    assert first.finish() == 0, first.output
    folder = first.output.rpartition("to see the status later: collectx status ")[2].strip()
    points = [RunFolder(Path(folder, f"seed={seed}")) for seed in range(3)]

    def collectx(*words, status=0):
        process = cluster.start([COMMAND, *words], cwd=first.cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate(timeout=300)[0].decode()
        assert process.returncode == status, said
        return said

    wait_until(lambda: len(list(points[0].read_metrics())) > 2, 300, "batches")
    collectx("cancel", str(points[1].path))
    said = collectx("status", folder).splitlines()
    assert [line.split()[1] for line in said if line.startswith("seed=") and ":" not in line.split()[0]] == [
        *("running", "interrupted", "queued")
    ]
    said = collectx("cancel", folder)
    assert "1 of 3 runs has already ended" in said
    assert "not all" not in said
    assert set(first.states()) == {"CANCELLED"}
    (checkpoint,) = points[0].checkpoints.iterdir()
    again = run(*words, f"hydra.sweep.dir={folder}")
    assert again.finish() == 0, again.output
    assert [files.read_result()["status"] for files in points] == ["completed"] * 3
    (resumed,) = [event for event in points[0].read_events() if event["event"] == "resumed"]
    assert resumed["batches"] == int(checkpoint.name)


@pytest.mark.nightly
def test_each_rung_of_a_sweep_is_an_array_of_the_points_that_are_left(run):
    points = "env.step_s=0.0001,0.0002,0.0003"
    started = run(*SMALL, "launcher=slurm", points, "-m", "hydra/sweeper=halving", "sweep.rungs=[2_000,10_000]")
    assert started.finish() == 0, started.output
    results = {run.path: run.read_result() for run in runs_below(started.cwd / "sweep")}
    *stopped, longest = sorted(results, key=lambda path: results[path]["frames"])
    assert [results[path]["frames"] for path in (*stopped, longest)] == [2000, 2000, 10000]
    assert sorted(started.status()) == ["completed", "stopped", "stopped"]
    (resumed,) = [event for event in RunFolder(longest).read_events() if event["event"] == "resumed"]
    assert resumed["batches"] == 2


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
    second = run(*sweep, "run.overwrite=true")  # its trainer has no state to continue from
    assert second.finish() == 0, second.output
    assert second.states() == ["COMPLETED"]
    assert second.status() == ["completed"] * 4
