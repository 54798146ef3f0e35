"""Runs as SLURM jobs: scripts, arrays, refusals, a second start, Ctrl-C. Real jobs: tests/slurm."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from composing import composed

from collectx import DistributedCollector
from collectx.cli import run, status
from collectx.errors import ConfigError, LauncherError
from collectx.jobs import submit, views, watcher
from collectx.jobs.status import SubmittedRun
from collectx.run import RunFolder, preflight
from collectx.run.rendezvous import JobSpec

HYDRAS = "hydra/launcher=submitit_slurm"


def missing(script: str, *options: str) -> list[str]:
    return [option for option in options if f"#SBATCH --{option}\n" not in script]


def test_a_run_is_one_job_with_what_the_launcher_asks_for(queue, capsys):
    asked = "partition=p account=a qos=q time=30 mem=4G cpus_per_task=2 gpus=1 constraint=ib nodes=2 exclusive=true"
    more = ["container=/image", "setup=['export LEVER=up']", "sbatch={job-name: mine}"]
    others = ["hydra.run.dir=run", "collector.num_workers=3", "collector.frames_per_batch=384", "trainer.gamma=0.5"]
    assert run.main(["launcher=slurm", *others, *(f"launcher.{word}" for word in [*asked.split(), *more])]) == 0
    (script,) = queue.scripts
    options = "partition=p account=a qos=q time=30 mem=4G cpus-per-task=2 gres=gpu:1 constraint=ib nodes=2 exclusive"
    assert missing(script, *options.split(), "job-name=mine", "requeue", "ntasks=4") == []
    assert "--array" not in script
    for text in ("\nexport LEVER=up\n", "--container=/image", "SRUN_CPUS_PER_TASK"):
        assert text in script
    out = capsys.readouterr().out
    assert "run: job 100, 4 tasks" in out
    assert "completed" in out
    # The job runs what was composed when it was submitted.
    cfg = JobSpec.read(RunFolder("run")).cfg
    assert (cfg.trainer.gamma, cfg.collector.num_workers) == (0.5, 3)
    # What has ended there is not replaced by a job.
    assert run.main(["launcher=slurm", "hydra.run.dir=run", "launcher.wait=false"]) == 2
    assert "run.overwrite=true" in capsys.readouterr().err
    assert (RunFolder("run").read_result()["status"], len(queue.scripts)) == ("completed", 1)


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


def test_a_job_continues_a_run_that_has_a_checkpoint(queue):
    command = ["launcher=slurm", "hydra.run.dir=run"]
    assert run.main(command) == 0
    files = RunFolder("run")
    files.result.unlink()  # the job was lost
    (files.checkpoints / "000000001").mkdir()
    assert run.main([*command, "resume=auto"]) == 0
    assert [path.name for path in files.checkpoints.iterdir()] == ["000000001"]
    assert JobSpec.read(files).cfg.run.resume == "auto"
    assert len(queue.scripts) == 2
    assert run.main([*command, "run.overwrite=true"]) == 0
    assert not list(files.checkpoints.iterdir())


def test_the_points_of_a_sweep_whose_folder_is_not_chosen_have_one_folder(queue, capsys):
    assert run.main(["launcher=slurm", "-m", "seed=0,4"]) == 0
    folder = capsys.readouterr().out.rpartition("sweep folder: ")[-1].strip()
    assert [f"  {Path.cwd() / folder}/seed={seed}\n" in queue.scripts[0] for seed in (0, 4)] == [True, True]
    assert status.main([folder]) == 0
    assert capsys.readouterr().out.count("  completed") == 2


def test_a_repeated_sweep_continues_points_from_their_checkpoints(queue, capsys):
    words = ["launcher=slurm", "launcher.wait=false", "hydra.sweep.dir=sweep", "-m", "seed=1,2"]
    assert run.main(words) == 0
    queue.states["100_1"] = "CANCELLED"
    first, second = RunFolder("sweep/seed=1"), RunFolder("sweep/seed=2")
    (first.checkpoints / "000000001").mkdir()
    queue.write_result(second.path, "interrupted")
    capsys.readouterr()
    assert run.main(words) == 0
    assert [path.name for path in first.checkpoints.iterdir()] == ["000000001"]
    assert [JobSpec.read(files).cfg.run.resume for files in (first, second)] == ["auto", "auto"]
    err = capsys.readouterr().err
    assert f"{second.path} has no checkpoint: the run begins anew" in err
    assert str(first.path) not in err
    queue.states["101_1"] = "CANCELLED"
    assert run.main([*words, "run.overwrite=true"]) == 0
    assert not list(first.checkpoints.iterdir())


def start(*lines: str) -> SimpleNamespace:
    """Submits runs of these configurations as those of a sweep, and follows those that are not to be left."""
    lines = [f"launcher=slurm run.overwrite=true {line}" for line in lines]
    runs = [SubmittedRun(f"point{i}", Path(f"point{i}").absolute(), composed(line)) for i, line in enumerate(lines)]
    results = []
    return SimpleNamespace(is_detached=submit.run_jobs(runs, ["run"], Path.cwd(), results), results=results)


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
    lanes = submit.Lanes(2, ["17", "18_1", "19"])
    assert (lanes.before(1), lanes.before(5)) == ({"18_1"}, {"17", "18_1", "19"})


def test_a_requeued_job_is_followed_to_its_last_end(queue, monkeypatch):
    lives = iter(["COMPLETING", "COMPLETING", "PENDING", "RUNNING", "RUNNING", "COMPLETED"])

    def next_life(seconds: float) -> None:
        queue.states["100"] = next(lives, "COMPLETED")
        queue.write_result(Path("point0"), "completed" if queue.states["100"] == "COMPLETED" else "interrupted")

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=next_life))
    assert [ended.status for ended in start("launcher.requeue=true seed=2").results] == ["completed"]


def test_the_progress_of_a_requeued_job_begins_again(queue, monkeypatch):
    lives, shown = iter(["RUNNING", "PENDING", "RUNNING", "COMPLETED"]), []

    class Progress:
        def __init__(self, statistics, start_s):
            shown.append(["begun", start_s])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            shown[-1][0] = "ended"

        def say(self, text):
            """Prints nothing."""

    def next_life(seconds: float) -> None:
        assert [state for state, _ in shown[:-1]] == ["ended"] * (len(shown) - 1)
        queue.states["100"] = next(lives, "COMPLETED")
        if queue.states["100"] == "COMPLETED":
            queue.write_result(Path("point0"), "completed")

    queue.is_held = True
    monkeypatch.setattr(views, "Progress", Progress)
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=next_life))
    assert [ended.status for ended in start("launcher.requeue=true").results] == ["completed"]
    (_, first_s), (_, second_s) = shown
    assert second_s > first_s


def test_an_old_result_of_a_requeued_job_is_no_reason_to_ask_at_every_refresh(queue, monkeypatch):
    asked, ticks, result = [], iter(range(100)), Path("point0", "result.json")

    def look_on(seconds: float) -> None:
        tick = next(ticks)
        if tick in (0, 8):
            queue.states["100"] = "COMPLETED" if tick else "PENDING"
            queue.write_result(Path("point0"), "completed" if tick else "interrupted")
            os.utime(result, ns=(tick, tick))
        assert tick < 10

    squeue = queue.squeue
    monkeypatch.setattr(queue, "squeue", lambda command: asked.append(command) or squeue(command))
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=look_on))
    monkeypatch.setattr(watcher, "_MIN_QUERY_S", 3600.0)
    queue.is_held = True
    assert [ended.status for ended in start("launcher.requeue=true").results] == ["completed"]
    assert len(asked) == 3


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


def test_a_queued_job_is_not_replaced_and_that_is_told(queue, capsys):
    queue.is_held = True
    words = ["launcher=slurm", "launcher.wait=false", "hydra.run.dir=run"]
    assert run.main(words) == run.main([*words, "run.overwrite=true"]) == 0
    assert queue.states == {"100": "PENDING"}
    folder = Path("run").absolute()
    told = "run.overwrite=true does not replace a job that has not ended: this is the run of job 100. To replace it: "
    assert f"{told}collectx cancel {folder}, then this command again" in capsys.readouterr().err


def test_the_limit_of_an_array_is_explained(queue, capsys):
    queue.is_held = True
    start(*(f"launcher.wait=false launcher.max_parallel=1 seed={seed}" for seed in (0, 4)))
    queue.squeue = lambda command: "100_0|RUNNING||n1\n100_1|PENDING|JobArrayTaskLimit|\n"
    assert status.main(["."]) == 0
    assert "point1: JobArrayTaskLimit: as many points run as launcher.max_parallel allows\n" in capsys.readouterr().out


@pytest.mark.parametrize("launcher", ["slurm", "submitit", "submitit_delayed"])
def test_a_launcher_that_needs_slurm_is_refused_where_there_is_none(launcher, within):
    within(preflight, "shutil", which=lambda name: None)
    (problem,) = preflight.launcher_problems(composed(f"launcher={launcher}"))
    assert problem.startswith(f"launcher={launcher}: this machine has no sbatch on its PATH")


@pytest.mark.parametrize(
    ("number", "answer", "state"),
    [(signal.SIGINT, "y", "CANCELLED"), (signal.SIGINT, "n", "RUNNING"), (signal.SIGTERM, "n", "CANCELLED")],
)
def test_an_interruption_cancels_unless_the_user_says_no(queue, monkeypatch, number, answer, state):
    def interrupted(seconds: float) -> None:
        if "RUNNING" in queue.states.values():
            signal.raise_signal(number)

    questions = []
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or answer)
    done = start("seed=2")
    assert [ended.status for ended in done.results] == ["interrupted"]
    assert queue.states == {"100": state}
    assert done.is_detached == (state == "RUNNING")
    assert len(questions) == (number == signal.SIGINT)


def test_an_interruption_ends_the_points_that_run_and_those_that_wait(queue, monkeypatch, capsys):
    signals = iter([signal.SIGTERM])

    def interrupted(seconds: float) -> None:
        for number in signals:
            queue.states["100_1"] = "PENDING"
            signal.raise_signal(number)

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    assert [ended.status for ended in start("seed=2", "seed=2 trainer.gamma=0.5").results] == ["interrupted"] * 2
    assert queue.states == {"100_0": "CANCELLED", "100_1": "CANCELLED"}
    err = capsys.readouterr().err
    assert "ending 2 jobs, with a checkpoint" in err
    assert "not ended" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("grace_s", [0.0, 1000.0])
def test_a_job_that_does_not_end_is_cancelled_by_the_second_signal_or_after_its_grace(
    queue, monkeypatch, grace_s, number
):
    presses = iter([number] * (1 if grace_s == 0 else 2))
    queue.deaf = {"100"}
    monkeypatch.setattr(SubmittedRun, "grace_s", grace_s)

    def interrupted(seconds: float) -> None:
        for number in itertools.islice(presses, 1):
            signal.raise_signal(number)

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    assert [ended.status for ended in start("seed=2").results] == ["interrupted"]
    assert queue.states == {"100": "CANCELLED"}


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
    with pytest.raises(ConfigError, match=r"point1 cannot be made: .*hydra.sweep.dir"):
        start("", "collector.num_workers=1")
    assert set(queue.states.values()) <= {"CANCELLED", "COMPLETED"}


@pytest.mark.parametrize("launcher", ["slurm", "submitit_delayed"])
def test_a_refused_run_leaves_its_folder_as_it_was(queue, capsys, launcher):
    words = [f"launcher={launcher}", "hydra.run.dir=run", "launcher.wait=false"]
    queue.refusal = "Invalid partition name specified"
    assert run.main(words) == 2
    assert queue.refusal in capsys.readouterr().err
    assert not list(Path().iterdir())
    queue.refusal = ""
    assert run.main(words) == 0
    RunFolder("run").final_checkpoint.write_text("weights")
    (RunFolder("run").checkpoints / "000000001").mkdir()
    before = files_of("run")
    queue.refusal = "QOSMaxSubmitJobPerUserLimit"
    for more in ([], ["run.overwrite=true", "seed=4"], ["resume=auto", "run.max_batches=1"]):
        assert run.main([*words, *more]) == 2
        assert files_of("run") == before
    assert status.main(["run"]) == 0
    assert "  completed" in capsys.readouterr().out


def test_refused_points_of_a_sweep_leave_their_folders_as_they_were(queue, capsys):
    words = ["launcher=slurm", "hydra.sweep.dir=sweep", "launcher.wait=false", "-m", "seed=0,1"]
    queue.refusal = "Invalid partition name specified"
    assert run.main(words) == 2
    assert [path.name for path in Path("sweep").iterdir()] == ["multirun.yaml"]
    assert status.main(["sweep"]) == 2
    assert "there is no run in it or below it" in capsys.readouterr().err
    queue.refusal = ""
    assert run.main(words) == 0
    before = files_of("sweep")
    queue.refusal = "Invalid partition name specified"
    assert run.main(words) == 2
    assert files_of("sweep") == before


@pytest.mark.parametrize(("reason", "state"), [("PartitionConfig", "PENDING"), ("JobHeldUser", "CANCELLED")])
def test_a_job_that_is_not_released_is_cancelled_but_not_one_that_cannot_start_yet(queue, capsys, reason, state):
    def refuse(command):
        if command[1] == "release":
            raise LauncherError("Requested partition configuration not available now")
        return ""

    queue.scontrol = refuse
    queue.squeue = lambda command: f"100|{queue.states['100']}|{reason}|\n"
    assert run.main(["launcher=slurm", "hydra.run.dir=run", "launcher.wait=false"]) == (0 if state == "PENDING" else 2)
    assert queue.states == {"100": state}
    assert ("not available now" in capsys.readouterr().err) == (state == "CANCELLED")


def files_of(folder: str) -> dict[Path, bytes]:
    """The files of a run or a sweep by their paths, without the lock and the times in a sweep's file."""
    paths = [path for path in Path(folder).rglob("*") if path.name not in ("lock", "multirun.yaml")]
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


def test_a_collector_without_the_jobs_of_its_launcher_says_how_to_get_them():
    with pytest.raises(ConfigError, match="submitit_delayed_launcher"):
        DistributedCollector([dict], frames_per_batch=20, launcher="submitit_delayed")
