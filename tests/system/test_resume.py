"""A run whose command was killed or told to stop continues from its checkpoint, and every batch counts once."""

import os
import re
import signal
from pathlib import Path

import pytest
from commands import COUNTING, collectx, forked, result, start

from collectx.checkpoints import Checkpoints
from collectx.run import RunFolder

OPTIONS = ["trainer.digest=true", "checkpoint.every_batches=7", "hydra.run.dir=run"]
PPO = ["collector.frames_per_batch=256", "collector.total_frames=10240", *OPTIONS]
ASYNC = [*COUNTING, "collector=multi_async", "collector.total_frames=200000", *OPTIONS]


def digests(folder):
    lines = list(RunFolder(folder).read_metrics())
    assert [line.batch for line in lines] == list(range(len(lines)))
    return [line.digest for line in lines]


def cut(words, num_batches, number, tmp_path, wait_until):
    """The digests of a run whose command got this signal after so many batches."""
    files = RunFolder(tmp_path / "run")
    command = start("run", *words, cwd=tmp_path)
    wait_until(lambda: command.poll() is not None or len(list(files.read_metrics())) >= num_batches, 200, "batches")
    command.send_signal(number)
    status = command.wait(200)
    assert status == (-number if number == signal.SIGKILL else 130), (tmp_path / "said.txt").read_text()
    return digests(files.path)


@pytest.mark.parametrize(
    ("words", "is_sync"),
    [
        pytest.param(PPO, True, id="sync_ppo"),
        pytest.param(ASYNC, False, id="async", marks=pytest.mark.nightly),
    ],
)
def test_a_run_that_was_killed_is_resumed_as_if_it_had_not_been(tmp_path, wait_until, words, is_sync):
    before = cut(words, 12, signal.SIGKILL, tmp_path, wait_until)
    assert "its process ended without" in forked("status", "run", cwd=tmp_path).stdout
    assert "continues after " in collectx("resume", "run", cwd=tmp_path).stdout
    after = digests(tmp_path / "run")
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert result(tmp_path / "run")["status"] == "completed"
    if is_sync:
        forked("run", *words[:-1], "launcher=inline", "hydra.run.dir=uncut", cwd=tmp_path)
        assert digests(tmp_path / "uncut") == after
        assert result(tmp_path / "uncut")["digest"] == result(tmp_path / "run")["digest"]


@pytest.mark.nightly
def test_a_run_that_is_killed_while_it_writes_a_checkpoint_continues_from_the_one_before(tmp_path, wait_until):
    # Weights and moments of some megabytes, so that writing takes a while.
    words = ["collector.total_frames=3072", "collector.frames_per_batch=128", "policy.hidden_sizes=[512, 1024]"]
    words += ["trainer.num_epochs=1", *OPTIONS[:1], "checkpoint.every_batches=3", "hydra.run.dir=run"]
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    command = start("run", *words, cwd=tmp_path)
    wait_until(lambda: command.poll() is not None or checkpoints.all(), 200, "a checkpoint")
    while command.poll() is None:
        if any(checkpoints.path.glob(".new-*/state.pt")):
            command.kill()
    assert command.wait() == -signal.SIGKILL, (tmp_path / "said.txt").read_text()
    assert any(checkpoints.path.glob(".new-*"))
    batches = int(checkpoints.all()[-1].name)
    assert f"continues after {batches} batches (" in collectx("resume", "run", cwd=tmp_path).stdout
    assert not any(checkpoints.path.glob(".new-*"))
    collectx("run", *words[:-1], "hydra.run.dir=uncut", cwd=tmp_path)
    assert digests(tmp_path / "uncut") == digests(tmp_path / "run")
    assert result(tmp_path / "uncut")["digest"] == result(tmp_path / "run")["digest"]


@pytest.mark.ci
def test_requests_for_a_checkpoint_never_end_a_run(tmp_path, wait_until):
    command = start("run", *COUNTING, "collector.total_frames=4096", "hydra.run.dir=run", cwd=tmp_path)

    def ignores():
        text = Path(f"/proc/{command.pid}/status").read_text()
        return int(re.search(r"SigIgn:\s*(\w+)", text)[1], 16) >> signal.SIGUSR1 - 1 & 1

    def ask():
        # The whole group, as a scheduler does.
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGUSR1)
            os.killpg(command.pid, signal.SIGUSR2)
        return command.returncode is not None

    wait_until(ignores, 100, "the start of the command")
    wait_until(ask, 200, "the end of the run")
    assert command.returncode == 0, (tmp_path / "said.txt").read_text()
    names = [event["event"] for event in RunFolder(tmp_path / "run").read_events()]
    assert names.count("checkpoint") > 1
    assert set(names) == {"workers_started", "checkpoint"}


def test_a_run_that_was_told_to_stop_writes_a_checkpoint_and_resume_auto_completes_it(tmp_path, wait_until):
    words = [*ASYNC, "checkpoint.every_batches=null", "resume=auto"]
    before = cut(words, 12, signal.SIGTERM, tmp_path, wait_until)
    ended = result(tmp_path / "run")
    assert (ended["status"], ended["batches"]) == ("interrupted", len(before))
    assert [path.name for path in Checkpoints(tmp_path / "run" / "checkpoints").all()] == [f"{len(before):09d}"]
    forked("run", *words, cwd=tmp_path)
    completed = result(tmp_path / "run")
    assert (completed["status"], completed["frames"]) == ("completed", 200192)
    assert digests(tmp_path / "run")[: len(before)] == before
    again = forked("run", *words, cwd=tmp_path)
    assert "already complete" in again.stderr
    assert result(tmp_path / "run") == completed


@pytest.mark.nightly
def test_a_repeated_sweep_continues_the_point_that_was_interrupted(tmp_path, wait_until):
    size = ["env.step_s=0.002", "collector.frames_per_batch=256", "collector.total_frames=5120"]
    words = [*COUNTING, "launcher=inline", "trainer.digest=true", *size, "hydra.sweep.dir=sweep", "-m", "seed=0,1"]
    first, second = (RunFolder(tmp_path / "sweep" / f"seed={seed}") for seed in (0, 1))
    command = start("run", *words, cwd=tmp_path)
    wait_until(lambda: command.poll() is not None or len(list(first.read_metrics())) >= 3, 200, "batches")
    command.terminate()
    assert command.wait(200) == 130
    before = digests(first.path)
    # The other point was killed before its first checkpoint.
    second.begin()
    second.config.write_bytes(first.config.read_bytes().replace(b"seed: 0", b"seed: 1"))
    second.metrics.write_text("")
    refused = collectx("run", *words, "run.resume=never", cwd=tmp_path, status=2)
    assert all(f"{files.path} already contains a run" in refused.stderr for files in (first, second))
    assert digests(first.path) == before
    done = collectx("run", *words, cwd=tmp_path)
    assert f"continues after {len(before)} batches" in done.stdout
    assert f"{second.path} contains no checkpoint, so the run starts over" in done.stderr
    assert digests(first.path)[: len(before)] == before
    assert [result(files.path)["frames"] for files in (first, second)] == [5120, 5120]


@pytest.mark.nightly
def test_a_run_is_watched_and_cancelled_by_other_commands(tmp_path, wait_until):
    words = [*COUNTING, "collector=multi_async", "collector.total_frames=-1", "hydra.run.dir=run"]
    files = RunFolder(tmp_path / "run")
    command = start("run", *words, cwd=tmp_path)
    wait_until(lambda: command.poll() is not None or any(files.read_metrics()), 200, "a batch")
    (tmp_path / "watch").mkdir()
    watch = start("watch", str(files.path), cwd=tmp_path / "watch")
    watched = tmp_path / "watch" / "said.txt"
    wait_until(lambda: watch.poll() is not None or "is running" in watched.read_text(), 200, "watch")
    assert "interrupted by SIGTERM" in collectx("cancel", "run", cwd=tmp_path).stdout
    assert (command.wait(200), watch.wait(200)) == (130, 130), watched.read_text()
    assert "interrupted by SIGTERM" in watched.read_text()
    assert f"to continue from the newest checkpoint: collectx resume {files.path}" in watched.read_text()
    assert "already ended" in collectx("cancel", "run", "--now", cwd=tmp_path).stdout


TIMED = [*COUNTING, "launcher=inline", "collector=single", "collector.total_frames=-1", "trainer.digest=true"]
TIMED += ["collector.frames_per_batch=64", "env.step_s=0.001"]


def test_a_run_ends_when_its_minutes_have_passed_and_a_resume_has_the_minutes_that_are_left(tmp_path):
    done = collectx("run", *TIMED, "run.max_minutes=0.1", "hydra.run.dir=run", cwd=tmp_path)
    first = result(tmp_path / "run")
    assert (first["status"], first["exit_reason"]) == ("completed", "0.1 minutes passed (run.max_minutes=0.1)")
    assert "To train longer: collectx resume run run.max_minutes=N" in done.stderr
    assert first["wall_s"] >= 6
    assert RunFolder(tmp_path / "run").has_checkpoint
    again = forked("resume", "run", cwd=tmp_path)
    assert "already complete: 0.1 minutes passed" in again.stderr
    less = forked("resume", "run", "run.max_minutes=0.01", cwd=tmp_path, status=2)
    assert "run.max_minutes=0.01 is too small: the checkpoint" in less.stderr
    minutes = first["wall_s"] / 60 + 0.05
    forked("resume", "run", f"run.max_minutes={minutes}", cwd=tmp_path)
    longer = result(tmp_path / "run")
    assert longer["batches"] > first["batches"]
    assert first["wall_s"] + 2.9 <= longer["wall_s"]
    same = forked("reproduce", "run", cwd=tmp_path)
    assert f"identical up to its end: all {longer['batches']} batches are identical" in same.stdout


def test_each_point_of_a_sweep_has_its_minutes(tmp_path):
    forked("run", "-m", *TIMED, "run.max_minutes=0.03", "seed=0,1", "hydra.sweep.dir=sweep", cwd=tmp_path)
    results = [result(folder) for folder in sorted((tmp_path / "sweep").glob("seed*"))]
    assert [each["exit_reason"] for each in results] == ["0.03 minutes passed (run.max_minutes=0.03)"] * 2
    assert all(each["batches"] for each in results)


DQN = [
    "trainer=dqn",
    "policy=q_mlp",
    "launcher=inline",
    "collector.frames_per_batch=256",
    "collector.total_frames=5120",
]
DQN += ["trainer.warmup_frames=512", "trainer.digest=true"]


def test_a_checkpoint_without_the_replay_buffer_fills_a_new_one_before_it_learns(tmp_path):
    words = [*DQN, "checkpoint.replay_buffer=false"]
    collectx("run", *words, "run.max_batches=4", "hydra.run.dir=run", cwd=tmp_path)
    (saved,) = (tmp_path / "run" / "checkpoints").glob("0*")
    assert {path.name for path in saved.iterdir()} == {"manifest.json", "state.pt"}
    resumed = forked("resume", "run", "run.max_batches=8", cwd=tmp_path)
    assert "the replay buffer replay is empty, as the checkpoint does not contain it" in resumed.stdout
    learned = ["loss" in line.scalars for line in RunFolder(tmp_path / "run").read_metrics()]
    # Two batches are the warm-up.
    assert learned == [False, True, True, True, False, True, True, True]
    repeated = forked("reproduce", "run", cwd=tmp_path)
    assert "resumed after 4 batches with empty replay buffers" in repeated.stderr
    assert "identical up to its end: all 4 batches are identical" in repeated.stdout
    plan = forked("plan", *DQN, cwd=tmp_path).stdout, forked("plan", *words, cwd=tmp_path).stdout
    assert ["replay buffer in a checkpoint" in each for each in plan] == [True, False]
