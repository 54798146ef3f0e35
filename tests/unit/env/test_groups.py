"""Groups of Gymnasium's envs, one by one and as vector envs of each mode, against a model of their frames."""

import random
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
from configurations import gym, gym_vector
from env_stepping import Stepper
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from collectx import progress
from collectx.env import build
from collectx.progress import OTHERS


class Scripted(gymnasium.Env):
    """An env whose observations follow from its seed, episode and step. Infos come in some steps only; those of a reset
    also at the end, as a vector env of mode SAME_STEP does not tell which of the two returned an entry. An episode may
    be both terminated and truncated."""

    observation_space = spaces.Dict(at=spaces.Box(-99, 99, (2,), np.int16), n=spaces.Discrete(99))
    action_space = spaces.MultiDiscrete([9, 9])

    def __init__(self, closed=None):
        self.id = self.episode = 0
        self.closed = [] if closed is None else closed

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            assert type(seed) is int
            self.id, self.episode = seed, 0
        self.episode += 1
        self.n = 0
        return self.observed(), {"first": 10 * self.episode + (options or {}).get("level", 0)}

    def step(self, action):
        assert action.tolist() == [self.n % 9, self.id % 9]
        action[:] = 0
        self.n += 1
        return self.observed(), *self.result(), self.info()

    def observed(self):
        return {"at": np.array([self.id, self.episode], np.int16), "n": self.n}

    def result(self):
        reward = self.n if self.id % 2 else self.n / 4
        return reward, self.n >= 2 + (self.id + self.episode) % 3, self.n >= 3

    def info(self):
        pose = {"pose": {"x": self.n, "y": np.array([self.n, 2.0])}} if self.n > 1 else {}
        first = {"first": -self.n} if any(self.result()[1:]) else {}
        return {"speed": self.n / 2, **pose, **first} if self.n % 2 else {**pose, **first}

    def close(self):
        self.closed.append(self.id)


KEPT = [{"speed": "float32"}, {"pose": {"x": "int64", "y": ["float64", 2]}}, {"first": "int64"}]
METRICS = ["speed", "pose.x", "pose.y", "first"]
METRICS += [f"step_mean/{name}" for name in METRICS]


def flat(observation, info):
    """Returns the leaves of an observation and of the kept infos."""
    pose = info.get("pose", {"x": 0, "y": np.zeros(2)})
    return [
        *observation["at"].tolist(),
        observation["n"],
        info.get("speed", 0.0),
        "speed" in info,
        pose["x"],
        *pose["y"],
        "pose" in info,
        info.get("first", 0),
        "first" in info,
    ]


def written(arrays, e):
    return [each for array in arrays for each in np.ravel(array[e]).tolist()]


GROUPS = ["one", "several", *(mode.value for mode in AutoresetMode)]


def configured(name, closed=None, **fields):
    """Returns a configuration of one or three envs; `name` may be the autoreset mode of a vector env."""
    make = partial(Scripted, closed)
    if name in ("one", "several"):
        return replace(gym(1 if name == "one" else 3, entry_point=make), **fields)
    vector = lambda num_envs: SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode(name))  # noqa: E731
    return replace(gym_vector(3), id=None, entry_point=vector, **fields)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("has_infos", [True, False])
def test_frames_infos_and_metrics_are_those_of_a_model(name, has_infos):
    draw, closed = random.Random(0), []
    progress.counts[OTHERS] = 0
    cfg = configured(name, closed, metrics=METRICS, info_keys=KEPT if has_infos else [])
    stepper = Stepper(build(cfg))
    group, size, ragged = stepper.env, cfg.num_envs, name == "NextStep"
    assert (stepper.spec.num_envs, stepper.spec.ragged, stepper.spec.can_reset_early) == (size, ragged, not ragged)
    assert progress.counts[OTHERS] == (size if name in ("one", "several") else 0)
    models, level = [Scripted() for _ in range(size)], 0
    (sums, counts), infos = np.zeros((2, 8)), [{}] * size
    num_leaves = len(flat(models[0].observation_space.sample(), {})) if has_infos else 3
    for number in range(60):
        if number % 20 == 0:
            seeds = [5 + 3 * number + e for e in range(size)] if number != 20 else None
            if number == 40 and not ragged:
                group.set_reset_options({"level": 4})
                level = 4
            if seeds is None:
                group.reset(None, stepper.observation)
            else:
                stepper.reset(seeds)
            options = {"level": level} if level else None
            infos = [model.reset(seed=seeds and seeds[e], options=options)[1] for e, model in enumerate(models)]
            first = group.reset_info["first"]
            assert np.ravel(first).tolist() == [info["first"] for info in infos][: np.size(first)]
            ended = [False] * size
        for e, model in enumerate(models):
            assert written(stepper.observation, e) == flat(model.observed(), infos[e])[:num_leaves]
        cut = np.array([draw.random() < 0.1 and not ragged for _ in range(size)])
        actions = np.array([[model.n % 9, model.id % 9] for model in models])
        # The action of a step that is a reset does not count.
        out = stepper.step(actions, cut=cut)
        for e, model in enumerate(models):
            assert out.frame[e] == (not (ragged and ended[e]))
            if ragged and ended[e]:
                infos[e], ended[e] = model.reset()[1], False
                continue
            model.n += 1
            info, (reward, terminated, truncated) = model.info(), model.result()
            frame = stepper.frames[e][-1]
            assert (frame.reward, frame.terminated, frame.truncated) == (reward, terminated, truncated)
            assert written([each[None] for each in frame.after], 0) == flat(model.observed(), info)[:num_leaves]
            pose = info.get("pose", {"x": None, "y": None})
            infos[e], ended[e] = info, terminated or truncated
            for i, value in enumerate((info.get("speed"), *pose.values(), info.get("first"))):
                for at in (i, i + 4) if ended[e] or cut[e] else (i + 4,):
                    if value is not None:
                        sums[at] += np.mean(value)
                        counts[at] += 1
            if (ended[e] or cut[e]) and not ragged:
                infos[e] = model.reset(options={"level": level} if level else None)[1]
        assert group.metrics.means() == {
            name: total / count for name, total, count in zip(METRICS, sums, counts, strict=True) if count
        }
        if number % 7 == 6:
            assert group.metrics.take().tolist() == [sums.tolist(), counts.tolist()]
            sums, counts = np.zeros((2, 8))
    group.close()
    assert sorted(closed) == [model.id for model in models]
    group.close()
    assert len(closed) == size


@pytest.mark.parametrize("name", ["SameStep", "NextStep"])
def test_what_resets_itself_has_options_only_in_gymnasiums_own_envs(name):
    stepper = Stepper(build(configured(name, info_keys=KEPT))).reset()
    stepper.env.set_reset_options({"level": 7})
    for _ in range(9):
        stepper.step(np.array([[model.n % 9, model.id % 9] for model in stepper.env.user_envs[0].unwrapped.envs]))
    firsts = {int(frame.before[-2][()]) for frames in stepper.frames for frame in frames if frame.before[-1]}
    assert {first % 10 for first in firsts} == {0, 7}
    stepper.env.close()
