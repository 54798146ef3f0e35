"""Several learners (`trainer.num_learners`), as typed: one run folder, equal weights, and one end for all."""

import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from commands import collectx, forked, needs_ray, result, start

from collectx.checkpoints import Checkpoints
from collectx.run import RunFolder

TWO = ["trainer.num_learners=2", "collector.num_workers=2", "collector.frames_per_batch=256", "trainer.digest=true"]
PPO = ["trainer=ppo", "collector=multi_sync", *TWO, "checkpoint.every_batches=4", "checkpoint.keep=2"]
IMPALA = ["trainer=impala", "collector=multi_async", *TWO, "checkpoint.every_batches=4"]
RAY = ["launcher=ray", "launcher.ray_init_config={address: local, num_cpus: 2}"]
TESTS = str(Path(__file__).parents[1])


@pytest.fixture(autouse=True)
def _user_code(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", TESTS)


def weights(folder):
    return torch.load(folder / "policy.pt", weights_only=True)


def assert_equal_runs(one, other):
    assert [line.digest for line in RunFolder(one).read_metrics()] == [
        line.digest for line in RunFolder(other).read_metrics()
    ]
    assert result(one)["digest"] == result(other)["digest"] is not None
    torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=0)


def learner(command, cwd):
    """The process of learner 1."""
    log = str(cwd / "run" / "logs" / "learner-1.log")
    found = [
        each
        for each in psutil.Process(command.pid).children(recursive=True)
        if any(file.path == log for file in each.open_files())
    ]
    (process,) = [each for each in found if each.ppid() not in {other.pid for other in found}]
    return process


def begin(words, cwd, wait_until, num_batches=6):
    """Starts an endless run; returns its command when it has some batches."""
    command = start("run", *words, "hydra.run.dir=run", cwd=cwd)
    lines = cwd / "run" / "metrics.jsonl"
    said = (cwd / "said.txt").read_text
    wait_until(
        lambda: (
            command.poll() is not None or len(lines.read_bytes().splitlines()) >= num_batches
            if lines.exists()
            else command.poll() is not None
        ),
        200,
        "batches",
    )
    assert command.poll() is None, said()
    return command


@pytest.mark.parametrize(
    "collector",
    [
        ["collector=multi_sync"],
        pytest.param(
            ["collector=distributed_sync", "collector.num_workers_per_collector=2"], marks=pytest.mark.nightly
        ),
    ],
    ids=["multi_sync", "nested"],
)
def test_two_learners_collect_the_frames_of_one(tmp_path, collector):
    """The envs have the same seeds and indices as with one learner, so their episodes are the same."""
    words = ["trainer=meter", *collector, *TWO[1:], "collector.total_frames=2048", "env.num_envs=2"]
    collectx("run", *words, "trainer.num_learners=2", "hydra.run.dir=two", cwd=tmp_path)
    forked("run", *words, "hydra.run.dir=one", cwd=tmp_path)
    two, one = (list(RunFolder(tmp_path / name).read_metrics()) for name in ("two", "one"))
    facts = ("batch", "frames", "episodes", "num_episodes", "batch_return", "batch_length", "mean_return")
    assert [[getattr(line, name) for name in facts] for line in two] == [
        [getattr(line, name) for name in facts] for line in one
    ]
    assert [each.worker for each in two[0].workers] == [0, 1]
    counts = [{name: result(tmp_path / folder)[name] for name in ("frames", "batches")} for folder in ("two", "one")]
    assert counts[0] == counts[1] == {"frames": 2048, "batches": 8}
    assert sorted(path.name for path in (tmp_path / "two" / "logs").glob("*-*.log")) == [
        "learner-1.log", "worker-0.log", "worker-1.log",
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["learner", pytest.param("rank_0", marks=pytest.mark.nightly), "sigterm"])
def test_a_run_that_was_ended_is_resumed_as_if_it_had_not_been(tmp_path, wait_until, end):
    command = begin([*PPO, "collector.total_frames=6144"], tmp_path, wait_until)
    there = psutil.Process(command.pid).children(recursive=True)
    killed, began_s = learner(command, tmp_path), time.monotonic()
    if end == "learner":
        killed.send_signal(signal.SIGKILL)
        status = 1
    else:
        command.send_signal(signal.SIGKILL if end == "rank_0" else signal.SIGTERM)
        status = -9 if end == "rank_0" else 130
    said = (tmp_path / "said.txt").read_text
    assert command.wait(100) == status, said()
    wait_until(lambda: not psutil.wait_procs(there, 0)[1], 5, f"the end of {there}")
    assert time.monotonic() - began_s < 10
    if end == "learner":
        log = tmp_path / "run" / "logs" / "learner-1.log"
        assert f"WorkerDied: learner 1 (log: {log}; pid {killed.pid}) was killed by signal 9 (SIGKILL)" in said()
        assert "gloo" not in said()
    resumed = collectx("resume", "run", cwd=tmp_path)
    assert "continues after" in resumed.stdout
    assert result(tmp_path / "run")["frames"] == 6144
    forked("run", *PPO, "collector.total_frames=6144", "hydra.run.dir=uncut", cwd=tmp_path)
    assert_equal_runs(tmp_path / "run", tmp_path / "uncut")
    names = [path.name for path in Checkpoints(tmp_path / "uncut" / "checkpoints").all()]
    assert names == ["000000020", "000000024"]
    assert all((tmp_path / "uncut" / "checkpoints" / f"learner-1-{name}").is_dir() for name in names)


@needs_ray
@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_learners_that_are_actors_of_ray_continue_as_local_ones_would(tmp_path, wait_until, end):
    """SIGKILL ends learner 1, and SIGTERM the run."""
    words = [*PPO, "collector.total_frames=6144"]
    command = begin([*words, *RAY], tmp_path, wait_until)
    assert "2 learners; in the newest batches, they waited" in forked("status", "run", cwd=tmp_path).stdout
    there, began_s = psutil.Process(command.pid).children(recursive=True), time.time()
    (learner(command, tmp_path) if end == signal.SIGKILL else command).send_signal(end)
    said = (tmp_path / "said.txt").read_text
    assert command.wait(100) == (1 if end == signal.SIGKILL else 130), said()
    wait_until(lambda: not psutil.wait_procs(there, 0)[1], 10, f"the end of {there}")
    assert (tmp_path / "run" / "result.json").stat().st_mtime - began_s < 5
    if end == signal.SIGKILL:
        assert "WorkerDied: learner 1 (Ray actor" in said()
        assert "gloo" not in said()
    collectx("resume", "run", cwd=tmp_path)
    forked("run", *words, "hydra.run.dir=uncut", cwd=tmp_path)
    assert_equal_runs(tmp_path / "run", tmp_path / "uncut")


def test_an_async_run_is_reproduced_and_resumed(tmp_path):
    words = [*IMPALA, "collector.total_frames=4096"]
    collectx("run", *words, "run.max_batches=10", "hydra.run.dir=run", cwd=tmp_path)
    assert "all 10 batches are identical" in forked("reproduce", "run", "hydra.run.dir=again", cwd=tmp_path).stdout
    torch.testing.assert_close(weights(tmp_path / "run"), weights(tmp_path / "again"), rtol=0, atol=0)
    before = [line.digest for line in RunFolder(tmp_path / "run").read_metrics()]
    forked("resume", "run", "run.max_batches=null", cwd=tmp_path)
    after = [line.digest for line in RunFolder(tmp_path / "run").read_metrics()]
    assert (after[:10], len(after)) == (before, 16)


def test_another_number_of_learners_continues_with_new_episodes(tmp_path):
    words = [*PPO[:-2], "collector.total_frames=2048"]
    collectx("run", *words, "run.max_batches=4", "hydra.run.dir=run", cwd=tmp_path)
    for number, last in ((1, 6), (2, 8)):
        change = [f"trainer.num_learners={number}", f"run.max_batches={last}"]
        said = forked("resume", "run", *change, cwd=tmp_path).stdout
        assert f"new episodes: trainer.num_learners was {3 - number}, and is now {number}" in said
        assert result(tmp_path / "run")["frames"] == last * 256
    refused = forked("resume", "run", "trainer.num_learners=3", cwd=tmp_path, status=2)
    assert "Use trainer.num_learners=1 or trainer.num_learners=2: collector.num_workers is fixed" in refused.stderr
    # The part of the first checkpoint is removed with it, although one learner has written the next one.
    (part,) = (tmp_path / "run" / "checkpoints").glob("learner-*")
    assert part.name == "learner-1-000000008"


def test_an_error_of_an_env_of_learner_1_ends_the_run_with_its_traceback(tmp_path):
    words = [*PPO, "env.id=null", "env.entry_point=user_code.several_learners:cartpole", "env.kwargs={fails_in: 1}"]
    ended = collectx("run", *words, "hydra.run.dir=run", cwd=tmp_path, status=1)
    assert "ArithmeticError: the env lost its balance" in ended.stderr
    (failure,) = result(tmp_path / "run")["failures"]
    assert (failure["type"], failure["worker"]) == ("ArithmeticError", 1)
    log = (tmp_path / "run" / "logs" / "trainer.log").read_text()
    assert "several_learners.py" in log
    assert "gloo" not in ended.stderr
    assert result(tmp_path / "run")["wall_s"] < 60


def test_a_learner_that_hangs_ends_the_run_after_the_limit(tmp_path, wait_until):
    words = [*PPO, "collector.total_frames=-1", "trainer.learner_timeout_s=3"]
    command = begin(words, tmp_path, wait_until)
    stopped = learner(command, tmp_path)
    stopped.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    assert command.wait(60) == 1
    assert time.monotonic() - began_s < 15
    said = (tmp_path / "said.txt").read_text()
    assert "WorkerTimeout: learner 1" in said
    assert "kept the others waiting for 3 s (trainer.learner_timeout_s=3)" in said
    wait_until(lambda: not stopped.is_running(), 5, "the end of learner 1")


def test_a_custom_trainer_uses_distributed_data_parallel(tmp_path):
    words = ["trainer=custom", "trainer.target=user_code.several_learners:Parallel", "collector=multi_sync", *TWO]
    words += ["collector.total_frames=1024", "checkpoint.every_batches=1"]
    collectx("run", *words, "hydra.run.dir=run", cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] == 1024
    failed = forked("run", *words, "+trainer.kwargs={is_apart: true}", "hydra.run.dir=apart", cwd=tmp_path, status=1)
    assert failed.stderr.count("after 1 batches, the weights of learner 1 differ from those of learner 0") == 1
    resumed = forked("resume", "run", "collector.total_frames=2048", cwd=tmp_path)
    assert "Parallel has no state_dict, so only the policy's published weights continue" in resumed.stdout


def test_learners_that_take_different_numbers_of_batches_end_with_an_error(tmp_path):
    words = ["trainer=custom", "trainer.target=user_code.several_learners:TooEarly", "collector=multi_sync", *TWO]
    failed = collectx("run", *words, "hydra.run.dir=run", cwd=tmp_path, status=1)
    assert "learner 1 has ended its training, but learner 0 asks for the next batch" in failed.stderr


def test_a_checkpoint_without_the_part_of_a_learner_is_skipped(tmp_path):
    words = [*PPO, "collector.total_frames=3072"]
    collectx("run", *words, "run.max_batches=8", "hydra.run.dir=run", cwd=tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "learner-1-000000008" / "state.pt").unlink()
    resumed = forked("resume", "run", "run.max_batches=null", cwd=tmp_path)
    assert f"{checkpoints / 'learner-1-000000008' / 'state.pt'} cannot be read" in resumed.stderr
    assert "continues after 4 batches" in resumed.stdout
    forked("run", *words, "hydra.run.dir=uncut", cwd=tmp_path)
    assert_equal_runs(tmp_path / "run", tmp_path / "uncut")


@pytest.mark.parametrize(
    "words",
    [
        ["trainer=dqn", "policy=q_mlp", "collector=multi_sync"],
        pytest.param(
            ["trainer=sac", "policy=squashed_mlp", "env.id=Pendulum-v1", "collector=multi_sync"],
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["dqn", "sac"],
)
def test_each_learner_continues_with_its_replay_buffer(tmp_path, words):
    words = [*words, *TWO, "trainer.warmup_frames=256", "trainer.updates_per_frame=0.05", "collector.total_frames=2560"]
    collectx("run", *words, "run.max_batches=6", "hydra.run.dir=run", cwd=tmp_path)
    newest = Checkpoints(tmp_path / "run" / "checkpoints").all()[-1]
    assert (newest.with_name(f"learner-1-{newest.name}") / "replay-replay.pt").is_file()
    forked("resume", "run", "run.max_batches=null", cwd=tmp_path)
    forked("run", *words, "hydra.run.dir=uncut", cwd=tmp_path)
    assert_equal_runs(tmp_path / "run", tmp_path / "uncut")


def test_async_workers_of_learners_write_to_their_buffers(tmp_path):
    words = ["trainer=dqn", "policy=q_mlp", "collector=multi_async", *TWO[:3], "trainer.warmup_frames=256"]
    collectx("run", *words, "collector.total_frames=2048", "hydra.run.dir=run", cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] == 2048


def test_evaluations_and_a_limit_of_the_return_are_those_of_the_run(tmp_path):
    words = [*PPO, "collector.total_frames=-1", "trainer.target_return=20", "eval.every_batches=2", "eval.episodes=2"]
    collectx("run", *words, "checkpoint.keep_best=eval/mean_return", "hydra.run.dir=run", cwd=tmp_path)
    ended = result(tmp_path / "run")
    assert ended["exit_reason"].startswith("reached trainer.target_return=20")
    assert ended["mean_return"] >= 20
    assert [each["event"] for each in RunFolder(tmp_path / "run").read_events()].count("evaluated") >= 2
