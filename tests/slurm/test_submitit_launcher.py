"""Hydra's launcher submitit_slurm: every point of a sweep is a job, with its trainer and its local workers inside."""

import json
import signal
from pathlib import Path

import pytest
from commands import COMMAND
from machines import wait_until
from running import SMALL, finish_requeued, urgent_job

from collectx.run import RunFolder

_CHOSEN = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=train", "hydra.launcher.timeout_min=60"]
# Some seconds long, with the batches of `digest`.
_SLOW = [*SMALL, "env.step_s=0.003"]
_EXPERIMENT = """\
# @package _global_
defaults:
  - override /hydra/launcher: submitit_slurm
hydra:
  launcher:
    partition: urgent
    timeout_min: 60
"""
_PRIMARY = """\
defaults:
  - config
  - override hydra/launcher: submitit_slurm
  - _self_
hydra:
  launcher:
    partition: urgent
    timeout_min: 60
"""


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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("my/experiment/queue.yaml", _EXPERIMENT, ["experiment=queue"]),
        ("my/queue.yaml", _PRIMARY, ["--config-name=queue"]),
    ],
    ids=["experiment", "primary"],
)
def test_the_launcher_and_its_keys_are_chosen_in_a_file(run, tmp_path, file, text, words):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    started = run("-m", "--config-dir=my", *words, *SMALL, "collector.num_workers=1", "seed=0,1")
    assert started.finish() == 0, started.output
    assert _rows(started) == [[f"seed={seed}", "completed", "10,000"] for seed in (0, 1)]
    assert [job.rpartition(",")[2] for job in _jobs(started)] == ["COMPLETED"] * 2
    lines = _script(started).read_text().splitlines()
    assert {"#SBATCH --partition=urgent", "#SBATCH --time=60"} <= set(lines)


@pytest.mark.nightly
def test_where_the_site_exports_nothing_a_line_of_the_set_up_exports_all(run):
    exports = "hydra.launcher.setup=['export SLURM_EXPORT_ENV=ALL']"
    words = [*_CHOSEN, exports, *SMALL, "collector.num_workers=1", "seed=0,1"]
    started = run("-m", *words, inside=["env", "SBATCH_EXPORT=NONE"])
    assert started.finish() == 0, started.output
    assert _rows(started) == [[f"seed={seed}", "completed", "10,000"] for seed in (0, 1)]


def _signal(started):
    (job,) = started.cluster.jobs()
    started.cluster.login(["scancel", "--signal=USR2", job])


@pytest.mark.nightly
@pytest.mark.parametrize("cut", [_signal, urgent_job])
def test_a_requeued_point_delivers_every_batch_once(run, digest, cut):
    started = run("-m", *_CHOSEN, *_SLOW, "seed=0")
    files = _points(started)[0]
    started.wait_until(lambda: len(list(files.read_metrics())) > 1, "batches")
    cut(started)
    assert finish_requeued(started) == 0, started.output
    (resumed,) = _events(files, "resumed")
    assert 0 < resumed["batches"] < 10
    assert [line.batch for line in files.read_metrics()] == list(range(10))
    assert files.read_result()["digest"] == digest
    assert [job.rpartition(",")[2] for job in _jobs(started)] == ["COMPLETED"]


def _collectx(started, *words):
    return started.cluster.login([COMMAND, *words], cwd=started.cwd, timeout=150)


@pytest.mark.nightly
def test_points_are_looked_at_and_cancelled_from_the_login_host(run):
    started = run("-m", *_CHOSEN, *_SLOW, "collector.total_frames=-1", "collector.num_workers=1", "seed=0,1")
    points = _points(started)
    started.wait_until(lambda: all(list(files.read_metrics()) for files in points), "batches of both")
    rows = [line.split() for line in _collectx(started, "status", "sweep").splitlines()]
    assert [row[1] for row in rows[1:3]] == ["running"] * 2
    assert sorted(row[-1] for row in rows[1:3]) == sorted(started.cluster.squeue("--array", "--format=%i"))
    assert _collectx(started, "cancel", "sweep").count("interrupted by SIGINT") == 2
    assert started.finish() == 130, started.output
    assert [row[:2] for row in _rows(started)] == [[f"seed={seed}", "interrupted"] for seed in (0, 1)]
    assert all(_events(files, "checkpoint") for files in points)
    assert [job.rpartition(",")[2] for job in _jobs(started)] == ["COMPLETED"] * 2


@pytest.mark.nightly
def test_of_a_killed_job_only_slurm_knows_where_there_is_no_accounting(cluster, run):
    """submitit asks sacct alone, so the command waits for the job until the user ends the command."""
    started = run("-m", *_CHOSEN, *_SLOW, "collector.total_frames=-1", "collector.num_workers=1", "seed=0,1")
    points = _points(started)
    started.wait_until(lambda: all(list(files.read_metrics()) for files in points), "batches of both")
    _, pid, _, node = points[0].lock.read_text().split()[:4]
    cluster.on(node, ["kill", "-9", pid])
    wait_until(lambda: len(cluster.squeue("--array", "--format=%i")) == 1, 60, "the job to end")
    said = _collectx(started, "status", "sweep")
    assert [line.split()[1] for line in said.splitlines()[1:3]] == ["failed", "running"]
    assert f"ended as FAILED on {node}" in said
    assert started.process.poll() is None
    started.interrupt(signal.SIGINT)
    assert [row[:2] for row in _rows(started)] == [["seed=0", "failed"], ["seed=1", "running"]]
    assert "1 point may still be running after this command. To stop them: collectx cancel sweep" in started.output
    _collectx(started, "cancel", "sweep")
    assert [job.rpartition(",")[2] for job in _jobs(started)] == ["FAILED", "COMPLETED"]


@pytest.mark.nightly
def test_a_refused_submission_is_one_message(cluster, run):
    started = run("-m", *_CHOSEN, "hydra.launcher.partition=nowhere", *SMALL, "seed=0,1")
    assert started.finish() == 2
    assert "invalid partition specified: nowhere" in started.output
    assert "Traceback" not in started.output
    assert cluster.login([COMMAND, "status", "sweep"], cwd=started.cwd, check=False) == ""
