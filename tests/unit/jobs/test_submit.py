"""Runs that are submitted as jobs, with a stand-in for SLURM: arrays, limits, a second start, refusals."""

import random
from pathlib import Path

import pytest
from composed_overrides import composed
from stand_in_slurm import missing, start

from collectx.cli import status
from collectx.errors import ConfigError, LauncherError
from collectx.jobs import submit, watcher
from collectx.jobs.status import NamedRun
from collectx.jobs.worker_jobs import JobSpec
from collectx.place.slurm import commands
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


def test_equal_points_are_one_array_and_a_failed_one_says_where_its_traceback_is(queue, capsys):
    points = ["seed=0", "seed=1", "collector.num_workers=1 seed=0", "collector.num_workers=1 seed=3"]
    done = start(*(f"launcher.max_parallel=1 {point}" for point in points))
    assert [ended.status for ended in done.results] == ["completed", "failed", "completed", "failed"]
    first, second = queue.scripts
    assert missing(first, "ntasks=3", "array=0-1%1", f"job-name={Path.cwd().name}") == []
    # Together they are no more than one at a time.
    assert missing(second, "ntasks=2", "array=0-1%1", "dependency=afterany:100") == []
    assert queue.states == {"100_0": "COMPLETED", "100_1": "FAILED", "101_0": "COMPLETED", "101_1": "FAILED"}
    err = capsys.readouterr().err
    assert f"point1: LeverError: stuck\n  full traceback: {Path.cwd() / 'point1/logs/trainer.log'}" in err
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
    assert f"to see the status later: collectx status {Path.cwd()}" in out
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
    assert "point1: JobArrayTaskLimit: launcher.max_parallel points are already running\n" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("lines", "largest", "is_inside", "expected"),
    [
        (["launcher=slurm"], 9, False, ["ntasks=3"]),
        (["launcher=slurm"], 9, True, []),
        (["launcher=slurm"] * 3, 2, False, ["ntasks=3 array=0-1", "ntasks=3"]),
        (["launcher=slurm", "launcher=slurm collector.num_workers=1"], 2, False, ["ntasks=3", "ntasks=2"]),
        (["launcher=slurm", "launcher=slurm collector.close_timeout_s=7"], 2, False, ["ntasks=3", "ntasks=3"]),
        (["launcher=submitit_delayed"] * 2, 9, True, ["ntasks=1 ntasks=2"] * 2),
        (["launcher=submitit"], 2, False, ["ntasks=1 array=0-1"]),
        (["launcher=submitit"], 1, False, ["ntasks=1 array=0-0", "ntasks=1 array=0-0"]),
        (
            ["launcher=submitit collector.num_workers=3 collector.frames_per_batch=504"],
            2,
            False,
            ["ntasks=1 array=0-1", "ntasks=1 array=0-0"],
        ),
    ],
)
def test_the_headers_of_all_scripts(queue, monkeypatch, lines, largest, is_inside, expected):
    monkeypatch.setattr(commands, "largest_array", lambda: largest)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if is_inside:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    runs = [
        NamedRun(f"p{number}", Path(f"p{number}").absolute(), composed(f"{line} launcher.requeue=false"))
        for number, line in enumerate(lines)
    ]
    found = [
        " ".join(line[10:] for line in each if line.startswith(("#SBATCH --ntasks", "#SBATCH --array")))
        for each in submit.headers(runs)
    ]
    assert found == expected


def test_places_of_a_sweep_against_a_plain_model():
    """Each of the runs that may run at a time waits for the jobs that had its place before."""
    draw = random.Random(0)
    for size in (1, 2, 5):
        unfinished = [f"old{number}" for number in range(draw.randint(0, 4))]
        limit, places = submit.ParallelLimit(size, unfinished), [set() for _ in range(size)]
        for number, job in enumerate(unfinished):
            places[number % size].add(job)
        places = places[len(unfinished) % size :] + places[: len(unfinished) % size]
        for job in map(str, range(20)):
            count = draw.randint(1, size + 2)
            assert limit.before(count) == set().union(*places[:count])
            limit.add(count, job)
            taken = min(count, size)
            places = places[taken:] + [{job} for _ in range(taken)]
    free = submit.ParallelLimit(None, ["old"])
    free.add(3, "1")
    assert free.before(3) == set()


def test_refusals_are_told_with_what_is_left_to_submit(queue, capsys):
    run, refused = queue.sbatch, iter([False, True, True])

    def sbatch(command):
        if next(refused):
            raise LauncherError("no more jobs")
        return run(command)

    queue.sbatch = sbatch
    done = start("", "collector.num_workers=1", "launcher.mem=1G")
    assert [ended.status for ended in done.results] == ["failed", "failed", "completed"]
    again = f"To submit the rest, repeat this command with hydra.sweep.dir={Path.cwd()}"
    assert f"note: 2 of 3 runs were not submitted: no more jobs. {again}\n" in capsys.readouterr().err
    assert not done.is_detached


@pytest.mark.parametrize(("num_allowed", "num_calls"), [(5, 6), (8, 1), (0, 4)])
def test_at_the_limit_of_jobs_as_many_points_are_submitted_as_slurm_allows(queue, capsys, num_allowed, num_calls):
    run, calls = queue.sbatch, []

    def sbatch(command):
        calls.append(
            num_runs := Path(command[-1]).read_text().partition("runs=(\n")[2].partition("\n)\n")[0].count("\n") + 1
        )
        if len(queue.states) + num_runs > num_allowed:
            raise commands.TooManyJobs("AssocMaxSubmitJobLimit")
        return run(command)

    queue.sbatch = sbatch
    points = [f"collector.num_workers=2 trainer.gamma={1 - 0.1**index}" for index in range(1, 9)]
    if num_allowed:
        done = start(*points)
        assert len(queue.states) == num_allowed
        assert [ended.status for ended in done.results].count("failed") == 8 - num_allowed
    else:
        with pytest.raises(ConfigError, match="AssocMaxSubmitJobLimit"):
            start(*points)
    assert len(calls) == num_calls


def test_a_job_that_has_not_ended_is_not_replaced(queue, capsys):
    queue.is_held = True
    start("launcher.wait=false")
    assert start("launcher.wait=false").is_detached
    err = capsys.readouterr().err
    assert "point0: run.overwrite=true does not replace job 100, which has not ended. To replace it, " in err
    assert queue.states == {"100": "PENDING"}
