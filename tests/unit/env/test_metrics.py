"""Sums of entries of `info`."""

from __future__ import annotations

import math
import pickle

import gymnasium
import numpy as np
import pytest

from collectx.env.metrics import CountedEpisodes, CountedVector, InfoMetrics
from collectx.errors import DataError


def step(metrics, info, ended=False, key=0):
    metrics.step(key, lambda action: (0, 0.0, ended, False, info), 0)


def test_entries_that_are_missing_and_nan_do_not_count():
    metrics = InfoMetrics(["won", "episode.l", "height", "step_mean/won"])
    for info in (
        {},
        {"won": None, "height": []},
        {"won": True, "height": math.nan},
        {"won": np.bool_(False), "episode": {"l": 4}, "height": [1, 2]},
    ):
        step(metrics, {"won": 1, "height": 100})  # not the end of an episode
        step(metrics, info, ended=True)
    assert metrics.means() == {"won": 0.5, "episode.l": 4.0, "height": 1.5, "step_mean/won": 5 / 6}
    assert metrics.take().tolist() == [[1, 4, 1.5, 5], [2, 1, 1, 6]]
    assert not metrics.take().any()


def test_an_episode_that_is_cut_counts_with_its_last_frame():
    metrics = InfoMetrics(["x"])
    for x, key in ((1, "a"), (2, "b"), (3, "a")):
        step(metrics, {"x": x}, key=key)
    metrics = pickle.loads(pickle.dumps(metrics))  # a checkpoint contains no infos
    metrics.cut("a")
    step(metrics, {"x": 4}, key="a")
    step(metrics, {"x": 5}, key="b", ended=True)
    for key in "abc":
        metrics.cut(key)
        metrics.cut(key)
    assert metrics.take().tolist() == [[9], [2]]
    info = {"x": np.array([1, 2, 3])}
    metrics.add_vector(info, np.array([True, False, False]), np.array([True, True, True]))
    metrics.cut_envs(np.array([False, True, False]))
    assert metrics.take().tolist() == [[3], [2]]


class Numbered(gymnasium.Env):
    """Episodes of two steps, which say their number; odd ones are truncated."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)
    number = -1

    def reset(self, **kwargs):
        self.number, self.t = self.number + 1, 0
        return 0, {"number": 100}

    def step(self, action):
        self.t += 1
        is_over, is_odd = self.t == 2, self.number % 2 == 1
        return 0, 0.0, is_over and not is_odd, is_over and is_odd, {"number": self.number, "t": self.t}


def test_only_the_first_episodes_of_an_env_count():
    metrics = InfoMetrics(["number", "t", "step_mean/t"])
    env = CountedEpisodes(Numbered(), metrics, 3)
    for _ in range(5):
        env.reset()
        while not any(env.step(0)[2:4]):
            pass
    assert metrics.take().tolist() == [[0 + 1 + 2, 2 * 3, 3 * (1 + 2)], [3, 3, 6]]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_only_the_first_episodes_of_each_env_of_a_vector_count(mode):
    metrics = InfoMetrics(["number", "step_mean/number"])
    made = gymnasium.vector.SyncVectorEnv([Numbered] * 2, autoreset_mode=mode)
    env = CountedVector(made, metrics, np.array([3, 1]))
    env.reset()
    for _ in range(12):
        ended = np.logical_or(*env.step(np.zeros(2, int))[2:4])
        if mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
    assert metrics.take().tolist() == [[0 + 1 + 2, 0 + 0 + 1 + 1 + 2 + 2], [3 + 1, 6 + 2]]


@pytest.mark.parametrize("value", ["yes", {"l": 1}, [[1], [1, 2]]])
def test_what_has_no_mean_is_named(value):
    with pytest.raises(DataError, match=r"env\.metrics cannot average 'x'"):
        step(InfoMetrics(["x"]), {"x": value}, ended=True)


def test_sums_are_those_of_a_model():
    """Infos of a vector of envs, with masks at each level, of frames and of steps that are none."""
    names = ["x", "a.b", "v"]
    draw, metrics = np.random.default_rng(0), InfoMetrics([*(f"step_mean/{name}" for name in names), *names])
    sums, counts = np.zeros((2, 6))
    for number in range(80):
        frames, ended, has = draw.random(4) < 0.8, draw.random(4) < 0.4, draw.random((3, 4)) < 0.6
        inner, values = draw.random(4) < 0.7, draw.integers(0, 9, (4, 4)).astype(float)
        values[draw.random((4, 4)) < 0.1] = np.nan
        info = {"x": values[0], "_x": has[0], "a": {"b": values[1], "_b": inner}, "_a": has[1]}
        info |= {"v": values[2:].T, "_v": has[2]} if number % 2 else {}
        is_final = number % 3 == 0
        final = {"x": values[3], "_x": draw.random(4) < 0.5}
        if is_final:
            metrics.add_same_step({**info, "final_info": final}, ended, frames)
        else:
            metrics.add_vector(info, ended, frames)
        for e in np.flatnonzero(frames):
            entries = {0: values[0][e]} if has[0][e] else {}
            entries |= {1: values[1][e]} if has[1][e] and inner[e] else {}
            entries |= {2: np.mean(values[2:, e])} if number % 2 and has[2][e] else {}
            if is_final and ended[e] and final["_x"][e]:
                entries[0] = values[3][e]
            for i, value in entries.items():
                for each in (i, i + 3) if ended[e] else (i,):
                    sums[each] += value if np.isfinite(value) else 0
                    counts[each] += np.isfinite(value)
    assert metrics.take().tolist() == [sums.tolist(), counts.tolist()]


@pytest.mark.parametrize("num_episodes", [0, 1, 2])
def test_a_reset_before_the_end_begins_another_episode(num_episodes):
    metrics = InfoMetrics(["number"])
    env = CountedEpisodes(Numbered(), metrics, num_episodes)
    for _ in range(3):
        env.reset()
        env.step(0)
    env.reset()
    assert metrics.take().tolist() == [[sum(range(num_episodes))], [num_episodes]]
    vector = CountedVector(
        gymnasium.vector.SyncVectorEnv([Numbered] * 2, autoreset_mode="Disabled"), metrics, np.full(2, num_episodes)
    )
    for mask in (None, [True, True], [True, False]):
        vector.reset(options=None if mask is None else {"reset_mask": np.array(mask)})
        vector.step(np.zeros(2, int))
    # The first episodes were cut, as was the second one of the first env; that of the second env has ended.
    numbers = [number for number in (0, 0, 1, 1) if number < num_episodes]
    assert metrics.take().tolist() == [[sum(numbers)], [len(numbers)]]
