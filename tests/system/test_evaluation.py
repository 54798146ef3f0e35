"""Evaluations during a run and after it, as their user asks for them."""

import csv
import json
import re
import signal
from importlib.util import find_spec

import pytest
from commands import collectx, evaluations, forked, result, start

RUN = [
    "collector.frames_per_batch=128",
    "collector.total_frames=1024",
    "hydra.run.dir=run",
    "trainer.digest=true",
    "run.overwrite=true",
]
EVAL = ["eval.every_batches=4", "eval.episodes=2"]
# In the process that evaluates, which has another priority, it ends or hangs.
OWN = """
import os, time
import gymnasium
def policy():
    if os.nice(0) == 10:
        os._exit(1)
    return lambda observation: observation[..., 0].gt(0).long()
def env():
    if os.nice(0) == 10:
        time.sleep(1e6)
    return gymnasium.make("CartPole-v1")
"""
# Its evaluations take a while, until there is a file `fast`.
SLOW = """
import time
from pathlib import Path
import gymnasium
class Slow(gymnasium.Wrapper):
    def step(self, action):
        while not Path("fast").exists():
            time.sleep(0.1)
        return super().step(action)
def env(worker_index):
    env = gymnasium.make("CartPole-v1")
    return Slow(env) if worker_index == -2 else env
"""


# In the process that evaluates, it is so slow that no evaluation ends before a signal.
SLOW = """
import os, time
import gymnasium
class Slow(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.2 if os.nice(0) == 10 else 0.01)
        return self.env.step(action)
def env():
    return Slow(gymnasium.make("CartPole-v1"))
"""


def events(folder, name):
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def test_an_evaluation_changes_no_batch_and_continues_with_the_run(tmp_path):
    folder = tmp_path / "run"
    forked("run", *RUN, "launcher=inline", cwd=tmp_path)
    digest = result(folder)["digest"]
    done = collectx("run", *RUN, *EVAL, "logger=csv", cwd=tmp_path)
    assert result(folder)["digest"] == digest
    evaluated = events(folder, "evaluated")
    assert [each["batches"] for each in evaluated] == [4, 8]
    assert evaluated[0]["frames"] == 512
    assert "evaluated after 512 frames: mean return" in done.stdout + done.stderr
    with open(folder / "progress.csv") as file:
        logged = [float(row["eval/mean_return"]) for row in csv.DictReader(file) if row.get("eval/mean_return")]
    assert logged == pytest.approx([each["mean_return"] for each in evaluated])
    forked("eval", "run", cwd=tmp_path)
    forked("resume", "run", "collector.total_frames=1536", cwd=tmp_path)
    assert [each["batches"] for each in events(folder, "evaluated")] == [4, 8, 12]
    # The newest weights give the same returns after the run as in it.
    last = next(each for each in events(folder, "evaluated") if each["batches"] == 12)
    forked("eval", "run", cwd=tmp_path)
    earlier, newest = evaluations(folder)
    assert (earlier["batches"], newest["batches"]) == (8, 12)
    assert newest["mean_return"] == pytest.approx(last["mean_return"])


@pytest.mark.ci
def test_a_resumed_run_makes_the_evaluations_that_a_signal_left(tmp_path, wait_until):
    (tmp_path / "own.py").write_text(SLOW)
    words = ["env.id=null", "env.entry_point=own:env", "collector.total_frames=100_000", "trainer=meter"]
    argv = ["collector.frames_per_batch=128", "hydra.run.dir=run", "eval.every_batches=2", "eval.episodes=2", *words]
    command = start("run", *argv, cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    count = lambda: len(metrics.read_text().splitlines()) if metrics.exists() else 0  # noqa: E731
    wait_until(lambda: command.poll() is not None or count() >= 4, 100, "batches")
    command.send_signal(signal.SIGTERM)
    assert command.wait(100) == 130
    (left,) = events(tmp_path / "run", "evaluations_left")
    assert left["batches"]
    assert "To make them: collectx resume RUN_DIR" in (tmp_path / "said.txt").read_text()
    end = count()
    (tmp_path / "own.py").write_text(SLOW.replace("0.2", "0"))
    forked("resume", "run", f"run.max_batches={end + 1}", cwd=tmp_path)
    made = [each["batches"] for each in events(tmp_path / "run", "evaluated")]
    assert made == [*range(2, end + 2, 2)]


@pytest.mark.ci
@pytest.mark.parametrize(
    "words",
    [
        ["collector=multi_async", "trainer=impala"],
        *(
            pytest.param(words, marks=pytest.mark.nightly)
            for words in (["collector=single"], ["collector=distributed_sync"], ["launcher=inline"])
        ),
    ],
)
def test_every_collector_evaluates(tmp_path, words):
    forked("run", *RUN, *EVAL, *words, cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"
    assert events(tmp_path / "run", "evaluated")
    assert not events(tmp_path / "run", "evaluation_failed")


@pytest.mark.ci
def test_a_process_that_ends_is_an_event_of_a_completed_run(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    custom = ["policy=custom", "policy.target=own:policy", "trainer=meter"]
    done = forked("run", *RUN, *EVAL, *custom, cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"
    (failed,) = events(tmp_path / "run", "evaluation_failed")
    assert "its process ended" in failed["message"]
    assert "evaluator.log" in done.stdout + done.stderr


@pytest.mark.ci
def test_an_evaluation_that_hangs_ends_with_the_run(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    custom = ["env.id=null", "env.entry_point=own:env", "eval.close_timeout_s=1"]
    done = forked("run", *RUN, *EVAL, *custom, cwd=tmp_path)
    assert result(tmp_path / "run")["status"] == "completed"
    assert "it did not end within 1 s (eval.close_timeout_s)" in done.stdout + done.stderr


@pytest.mark.ci
def test_a_run_saves_videos_of_its_evaluations(tmp_path):
    video = ["debug=tiny", "trainer=meter", "eval.video=true", "eval.episodes=2", "hydra.run.dir=run"]
    forked("run", *video, "eval.every_batches=1", cwd=tmp_path)
    during = {each.relative_to(tmp_path / "run/videos") for each in (tmp_path / "run/videos").rglob("*.mp4")}
    frames = events(tmp_path / "run", "evaluated")[0]["frames"]
    assert {f"{path.parent.name}/{path.name}" for path in during} >= {
        f"frames-{frames}/eval-episode-{number}.mp4" for number in (0, 1)
    }
    assert "XDG_RUNTIME_DIR" not in (tmp_path / "run/logs/evaluator.log").read_text()
    # Later evaluations keep them, and each other's.
    for _ in range(2):
        forked("eval", "run", "episodes=1", cwd=tmp_path)
    assert len([*(tmp_path / "run/videos").rglob("*.mp4")]) == len(during) + 2
    said = forked("run", *video, "eval.weights=best", "run.overwrite=true", cwd=tmp_path).stderr
    assert "eval.video=true saves no video in this run, which is not evaluated. Add eval.every_batches=N" in said
    assert "eval.weights=best has no effect, because this run keeps no best checkpoint." in said
    refused = forked(
        "run", *video, "env=counting", "eval.every_batches=1", "run.overwrite=true", cwd=tmp_path, status=2
    )
    assert "eval.video=true cannot be used with env=counting" in refused.stderr


# A step is worth 5. An episode has 20 steps, so its return is 100.
WALK = """
import gymnasium as gym, numpy as np
class Walk(gym.Env):
    action_space = gym.spaces.Discrete(2)
    def __init__(self, size=3, length=20, token=None):
        self.observation_space, self.length = gym.spaces.Box(-1, 1, (size,), np.float32), length
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(self.observation_space.shape, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(self.observation_space.shape, np.float32), 5.0, self.t >= self.length, False, {}
"""
ONE = """
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
def make(skip=1):
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=20 // skip))
"""
CLIPPED = [
    *("env=gym", "env.entry_point=walk:Walk", "env.wrappers=[{ClipReward:{min_reward:-1,max_reward:1}}]"),
    *("debug=tiny", "eval.every_batches=1", "eval.episodes=2", "hydra.run.dir=run"),
]


@pytest.mark.ci
def test_evaluations_in_another_env(tmp_path):
    (tmp_path / "walk.py").write_text(WALK)
    best = ["checkpoint.keep_best=eval/mean_return", "checkpoint.keep=1"]
    forked("run", *CLIPPED, *best, "eval.env.wrappers=[]", "trainer.digest=true", cwd=tmp_path)
    folder = tmp_path / "run"
    assert result(folder)["mean_return"] == 20
    assert {each["mean_return"] for each in events(folder, "evaluated")} == {100}
    scores = [json.loads(path.read_text())["score"] for path in folder.glob("checkpoints/0*/manifest.json")]
    assert set(scores) == {100}
    done = forked("eval", "run", "weights=best", cwd=tmp_path)
    assert "mean return 100 " in done.stdout
    assert "note: this evaluation uses eval.env={wrappers:[]}" in done.stderr
    forked("eval", "run", "eval.env.kwargs.length=30", cwd=tmp_path)
    found = evaluations(folder)[-1]
    assert (found["returns"], found["env"]) == ([150, 150], {"wrappers": [], "kwargs": {"length": 30}})
    done = forked("eval", "run", "eval.env.kwargs.token=${oc.env:USER_TOKEN,secret}", cwd=tmp_path)
    assert "kwargs:{token:${oc.env:USER_TOKEN,secret}}" in done.stderr
    assert '"token":"${oc.env:USER_TOKEN,secret}"' in (folder / "evaluations.jsonl").read_text()
    forked("resume", "run", "collector.total_frames=192", "eval.env.kwargs.length=4", cwd=tmp_path)
    assert events(folder, "evaluated")[-1]["mean_return"] == 20
    done = forked("reproduce", "run", "hydra.run.dir=again", cwd=tmp_path)
    assert "identical" in done.stdout


@pytest.mark.ci
def test_a_sweep_over_the_envs_of_evaluations(tmp_path):
    (tmp_path / "walk.py").write_text(WALK)
    words = [word for word in CLIPPED if not word.startswith("hydra.")]
    forked("run", "-m", *words, "eval.env.kwargs.length=2,3", "hydra.sweep.dir=all", cwd=tmp_path)
    folders = sorted((tmp_path / "all").glob("*length*"))
    assert [events(folder, "evaluated")[0]["mean_return"] for folder in folders] == [2, 3]


@pytest.mark.ci
def test_the_spaces_of_evaluations_are_those_of_the_policy(tmp_path):
    (tmp_path / "walk.py").write_text(WALK)
    for subcommand in ("plan", "run"):
        done = forked(subcommand, *CLIPPED, "eval.env.kwargs.size=4", cwd=tmp_path, status=2)
        assert (
            "eval.env={kwargs:{size:4}} cannot be used, because the policy was made for other observations: "
            "Box((3,), float32) in training, Box((4,), float32) in evaluations."
        ) in done.stderr
        assert not (tmp_path / "run").exists()
    forked("run", *CLIPPED, cwd=tmp_path)
    done = forked("eval", "run", "eval.env.kwargs.size=4", cwd=tmp_path, status=2)
    assert "for other observations" in done.stderr
    done = forked("eval", "run", "env=cartpole", cwd=tmp_path, status=2)
    rule = "env=cartpole cannot be used, because the policy was made for other observations: Box((3,), float32)"
    assert f"{rule} in training, Box((4,), float32) in evaluations" in done.stderr
    # The spaces of a run whose env is lost are unknown.
    (tmp_path / "walk.py").write_text(WALK.replace("Walk", "Moved"))
    done = forked("eval", "run", "env.entry_point=walk:Moved", cwd=tmp_path)
    assert "mean return 20 " in done.stdout


@pytest.mark.ci
def test_mistakes_of_an_evaluation_have_a_place_or_an_advice(tmp_path):
    (tmp_path / "walk.py").write_text(WALK)
    forked("run", *CLIPPED, cwd=tmp_path)
    done = forked("eval", "run", "env.kwargs.lenght=3", cwd=tmp_path, status=2)
    assert "env.kwargs.lenght is not an argument of walk:Walk. Did you mean env.kwargs.length?" in done.stderr
    text = WALK.replace(
        "def step(self, action):", "def step(self, action):\n        raise OSError('the sensor is lost')"
    )
    (tmp_path / "walk.py").write_text(text)
    done = forked("eval", "run", cwd=tmp_path, status=1)
    lost, of_env, place = done.stderr.splitlines()[-3:]
    assert lost == "collectx: OSError: the sensor is lost"
    assert of_env.startswith("  raised in step() of env 0")
    assert re.fullmatch(rf"  raised in {tmp_path}/walk.py:\d+, in step", place)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("env", "changes", "returned"),
    [
        (["env=torchrl", "env.target=one:make"], ["eval.env.kwargs.skip=4"], 5),
        (["env=gym_vector", "env.id=CartPole-v1"], ["eval.env.kwargs.max_episode_steps=5"], 5),
        (["env=counting"], ["eval.env.episode_length=3", "eval.env.num_envs=2"], None),
        pytest.param(
            ["env=envpool", "env.id=CartPole-v1"],
            ["eval.env={kind: gym, id: CartPole-v1, kwargs: {max_episode_steps: 5}}"],
            5,
            marks=pytest.mark.skipif(find_spec("envpool") is None, reason="envpool is not installed"),
        ),
    ],
)
def test_every_kind_of_env_can_change(tmp_path, env, changes, returned):
    """One-hot actions, which TorchRL has, are the same in both."""
    (tmp_path / "one.py").write_text(ONE)
    words = ["debug=tiny", "trainer=meter", "policy=random", "eval.every_batches=1", "eval.episodes=2"]
    forked("run", *env, *changes, *words, "hydra.run.dir=run", cwd=tmp_path)
    first = events(tmp_path / "run", "evaluated")[0]
    if returned is None:
        assert first["mean_length"] == 3.5
    else:
        assert first["mean_return"] <= returned


@pytest.mark.ci
def test_mistakes_in_the_envs_of_evaluations_are_listed_with_all_others(tmp_path):
    (tmp_path / "walk.py").write_text(WALK)
    words = ["eval.env.kwargs.sise=4", "eval.env.num_envs=zero", "env.kwargs.lenght=2", "seed=-1"]
    done = forked("run", *CLIPPED, *words, cwd=tmp_path, status=2)
    assert "eval.env.num_envs=zero must be an integer." in done.stderr
    assert "env.kwargs.lenght is not an argument of walk:Walk. Did you mean env.kwargs.length?" in done.stderr
    words = ["eval.env.kwargs.sise=4", "env.kwargs.lenght=2", "seed=-1"]
    done = forked("run", *CLIPPED, *words, cwd=tmp_path, status=2)
    assert "3 configuration errors" in done.stderr
    assert "eval.env.kwargs.sise is not an argument of walk:Walk. Did you mean eval.env.kwargs.size?" in done.stderr
