"""Hydra's launcher submitit_slurm: every point of a sweep is a job, with its trainer and its local workers inside."""

import json
from pathlib import Path

from machines import wait_until
from running import SMALL

from collectx.run import RunFolder

_CHOSEN = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=train", "hydra.launcher.timeout_min=60"]


def _points(started):
    """The run folders, in the order of the overrides."""
    return [RunFolder(started.cwd / "sweep" / str(number)) for number in range(2)]


def _rows(started):
    """Point, status and frames of each row of the first table that the command has printed."""
    table = started.output.partition("\npoint ")[2].partition("\n\n")[0]
    return sorted(line.split()[:3] for line in table.splitlines() if "=" in line)


def _events(files, name):
    return [event for event in files.read_events() if event["event"] == name]


def _script(started):
    """The script of the only array of jobs, whose name begins with the array's number."""
    (script,) = Path(started.cwd, "sweep", ".submitit").glob("*/*_submission.sh")
    return script


def _jobs(started):
    """Point, node and state of each job, when all have ended."""
    cluster = started.cluster
    wait_until(lambda: not cluster.jobs(), 60, "all jobs to end")
    array = _script(started).name.partition("_")[0]
    return cluster.squeue("--states=all", "--array", f"--jobs={array}", "--sort=i", "--format=%K,%N,%T")


def test_points_are_jobs_with_local_workers(cluster, run):
    started = run("-m", *_CHOSEN, *SMALL, "collector.num_workers=1,2")
    assert started.finish() == 0, started.output
    assert _rows(started) == [[f"collector.num_workers={count}", "completed", "10,000"] for count in (1, 2)]
    nodes = []
    for num_workers, files in enumerate(_points(started), start=1):
        assert files.read_result()["frames"] == 10_000
        (begun,) = _events(files, "workers_started")
        assert (begun["num_workers"], begun["launcher"]) == (num_workers, "local")
        assert len(list(files.logs.glob("worker-*.log"))) == num_workers
        nodes.append(json.loads(files.meta.read_text())["host"])
    # None for a worker.
    assert _jobs(started) == [f"{index},{node},COMPLETED" for index, node in enumerate(nodes)]
