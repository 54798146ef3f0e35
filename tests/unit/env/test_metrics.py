"""Sums of entries of `info`."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

from collectx.env.metrics import CountedEpisodes, CountedVector, InfoMetrics
from collectx.errors import ShapeError


def test_frames_without_the_entry_and_nan_do_not_count():
    metrics = InfoMetrics(["won", "episode.l", "height"])
    for info in (
        {},
        {"won": None, "height": []},
        {"won": True, "height": math.nan},
        {"won": np.bool_(False), "episode": {"l": 4}, "height": [1, 2]},
    ):
        metrics.add(info)
    assert metrics.means() == {"won": 0.5, "episode.l": 4.0, "height": 1.5}
    assert metrics.take().tolist() == [[1, 4, 1.5], [2, 1, 1]]
    assert not metrics.take().any()


def test_masks_of_vector_envs():
    metrics = InfoMetrics(["won", "episode.l"])
    ended, mask = np.array([False, True, True]), np.array([True, True, False])
    info = {"won": np.array([1, 0, 9]), "_won": mask, "episode": {"l": np.array([7, 8, 9]), "_l": mask}}
    metrics.add_vector(info | {"_episode": ended}, np.ones(3, bool))
    assert metrics.take().tolist() == [[1, 8], [2, 1]]
    # In SAME_STEP mode, an ended env's entry is that of the final info, if this has one.
    final = {"won": np.array([0, 5, 0]), "_won": np.array([False, True, False])}
    metrics.add_same_step(info | {"_episode": ended, "final_info": final}, ended, np.ones(3, bool))
    assert metrics.take().tolist() == [[6, 8], [2, 1]]
    metrics.add_vector({"won": np.zeros((3, 0))}, np.ones(3, bool))
    assert not metrics.take().any()


class Numbered(gymnasium.Env):
    """Episodes of two steps, which say their number."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)
    number = -1

    def reset(self, **kwargs):
        self.number, self.t = self.number + 1, 0
        return 0, {"number": 100}

    def step(self, action):
        self.t += 1
        return 0, 0.0, self.t == 2, False, {"number": self.number}


def test_only_the_first_episodes_of_an_env_count():
    metrics = InfoMetrics(["number"])
    env = CountedEpisodes(Numbered(), metrics, 3)
    for _ in range(5):
        env.reset()
        while not env.step(0)[2]:
            pass
    assert metrics.take().tolist() == [[0 + 0 + 1 + 1 + 2 + 2], [6]]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_only_the_first_episodes_of_each_env_of_a_vector_count(mode):
    metrics = InfoMetrics(["number"])
    made = gymnasium.vector.SyncVectorEnv([Numbered] * 2, autoreset_mode=mode)
    env = CountedVector(made, metrics, np.array([3, 1]))
    env.reset()
    for _ in range(12):
        ended = env.step(np.zeros(2, int))[2]
        if mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
    assert metrics.take().tolist() == [[0 + 0 + 1 + 1 + 2 + 2], [6 + 2]]


@pytest.mark.parametrize("value", ["yes", {"l": 1}, [[1], [1, 2]]])
def test_what_has_no_mean_is_named(value):
    with pytest.raises(ShapeError, match=r"env\.metrics cannot average 'x'"):
        InfoMetrics(["x"]).add({"x": value})
