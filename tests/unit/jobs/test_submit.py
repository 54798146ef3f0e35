"""Runs that are submitted as jobs, with a stand-in for SLURM: arrays, limits, a second start, refusals."""

from pathlib import Path

import pytest
from stand_in_slurm import missing, start

from collectx.cli import status
from collectx.errors import ConfigError
from collectx.jobs import submit, watcher
from collectx.jobs.rendezvous import JobSpec
from collectx.run import RunFolder


@pytest.mark.parametrize(
    ("words", "requeues"),
    [
        ("partition=cpu", False),
        ("partition='cpu,spot'", True),
        ("partition=cpu time=30", True),
        ("partition=spot requeue=false", False),
        ("sbatch={partition:spot}", True),
    ],
)
def test_jobs_that_slurm_may_end_before_the_run_are_requeued(queue, words, requeues):
    queue.preempted = ["spot"]
    start(" ".join(f"launcher.{word}" for word in words.split()))
    (script,) = queue.scripts
    assert missing(script, "requeue" if requeues else "no-requeue") == []
    assert JobSpec.read(RunFolder("point0")).cfg.launcher.requeue is requeues


def test_equal_points_are_one_array_and_a_failed_one_is_shown_with_its_traceback(queue, capsys):
    points = ["seed=0", "seed=1", "collector.num_workers=1 seed=0", "collector.num_workers=1 seed=3"]
    done = start(*(f"launcher.max_parallel=1 {point}" for point in points))
    assert [ended.status for ended in done.results] == ["completed", "failed", "completed", "failed"]
    first, second = queue.scripts
    assert missing(first, "ntasks=3", "array=0-1%1", f"job-name={Path.cwd().name}") == []
    # Together they are no more than one at a time.
    assert missing(second, "ntasks=2", "array=0-1%1", "dependency=afterany:100") == []
    assert queue.states == {"100_0": "COMPLETED", "100_1": "FAILED", "101_0": "COMPLETED", "101_1": "FAILED"}
    err = capsys.readouterr().err
    assert "point1: LeverError: stuck\n  Traceback (most recent call last):\n  LeverError: stuck" in err
    assert "point3: job 101_1 ended as FAILED" in err


def test_points_of_a_sweep_run_at_most_so_many_at_a_time_whatever_they_ask_for(queue):
    queue.is_held = True
    points = ["seed=0", "seed=4", *(f"launcher.mem={memory}G" for memory in (1, 2, 3))]
    start(*(f"launcher.wait=false launcher.max_parallel=2 {point}" for point in points))
    after = [line for script in queue.scripts for line in script.splitlines() if "dependency" in line]
    assert after == [f"#SBATCH --dependency=afterany:{job}" for job in (100, 100, 101)]
    # Jobs of an earlier submission of the sweep count too.
    limit = submit.ParallelLimit(2, ["17", "18_1", "19"])
    assert (limit.before(1), limit.before(5)) == ({"18_1"}, {"17", "18_1", "19"})


def test_a_second_start_submits_no_job_twice_and_gives_its_folder_to_no_other(queue, capsys):
    queue.is_held = True
    assert start("launcher.wait=false", "launcher.wait=false seed=4").is_detached
    out = capsys.readouterr().out
    assert f"look in later: collectx status {Path.cwd()}" in out
    queue.states["100_1"] = "FAILED"
    assert start("launcher.wait=false", "launcher.wait=false seed=4").is_detached
    with pytest.raises(ConfigError, match="job 100_0 has not ended"):
        start("launcher.wait=false seed=5")
    assert queue.states == {"100_0": "PENDING", "100_1": "FAILED", "101": "PENDING"}
    assert capsys.readouterr().out.count("of an earlier submission is queued") == 1
    assert status.main(["."]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["queued", "queued"]
    assert out.count(": Resources") == 2


def test_the_limit_of_an_array_is_explained(queue, capsys):
    queue.is_held = True
    start(*(f"launcher.wait=false launcher.max_parallel=1 seed={seed}" for seed in (0, 4)))
    queue.squeue = lambda command: "100_0|RUNNING||n1\n100_1|PENDING|JobArrayTaskLimit|\n"
    assert status.main(["."]) == 0
    assert "point1: JobArrayTaskLimit, as launcher.max_parallel points are already running\n" in capsys.readouterr().out


def test_an_interruption_before_jobs_are_followed_leaves_no_job(queue, monkeypatch):
    def interrupted(*arguments: object) -> None:
        raise watcher.Terminated

    queue.is_held = True
    monkeypatch.setattr(submit, "Watcher", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start("seed=0", "seed=1")
    assert queue.states == {"100_0": "CANCELLED", "100_1": "CANCELLED"}


def test_a_run_folder_that_cannot_be_made_is_refused_before_its_job(queue):
    Path("point1", "logs").parent.mkdir()
    Path("point1", "logs").touch()
    with pytest.raises(ConfigError, match=r"cannot create the .*point1: .*hydra.sweep.dir"):
        start("", "collector.num_workers=1")
    assert set(queue.states.values()) <= {"CANCELLED", "COMPLETED"}
