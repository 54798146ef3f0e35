"""The distributions of random actions: those of Gymnasium's `sample`, from torch's generator."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.env.base import EnvSpec, steps_per_draw
from collectx.policy.random import random_actor

INF = np.inf


class Even(gym.Space):
    """A user's space, which only its own `sample` knows."""

    def __init__(self, shape):
        super().__init__(shape, np.int64)

    def __repr__(self):
        return "Even"

    def sample(self):
        return 2 * self.np_random.integers(0, 2, self.shape)


FLOATS = spaces.Box(np.float32([-2, 1, -INF, -INF]), np.float32([3, INF, 4, INF]), dtype=np.float32)


def drawn(space, dtype, count=4000):
    leaf = Leaf(("action",), space.shape, dtype)
    spec = EnvSpec(1, (Leaf(("observation",), (1,), torch.float32),), (leaf,), spaces.Box(-1, 1, (1,)), space)
    actor = random_actor(spec)
    return torch.stack([actor.act(())[0][0] for _ in range(count)]).double()


def test_floats_between_bounds_from_a_bound_and_without_bounds():
    values = drawn(FLOATS, torch.float32)
    bounded = drawn(spaces.Box(-2, 3, (2,), np.float32), torch.float32)
    for uniform in (values[:, 0], bounded[:, 0], bounded[:, 1]):
        assert uniform.min() >= -2
        assert uniform.max() < 3
        assert torch.histc(uniform, 10, -2, 3) == pytest.approx(torch.full((10,), 400.0), rel=0.2)
    for tail in (values[:, 1] - 1, 4 - values[:, 2]):
        assert (tail >= 0).all()
        assert tail.mean() == pytest.approx(1, abs=0.1)
    assert (values[:, 3].mean(), values[:, 3].std()) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1))


@pytest.mark.parametrize(
    ("space", "lows", "highs"),
    [
        (spaces.Discrete(3, start=5), 5, 7),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), [1, -1], [2, 1]),
        (spaces.MultiBinary(2), [0, 0], [1, 1]),
        (spaces.Box(0, 255, (1,), np.uint8), [0], [255]),
        (Even((1,)), [0], [2]),
    ],
    ids=str,
)
def test_integers_reach_both_ends(space, lows, highs):
    values = drawn(space, torch.int64)
    assert values.amin(0).tolist() == lows
    assert values.amax(0).tolist() == highs
    middle = (np.asarray(lows) + np.asarray(highs)) / 2
    assert values.mean(0).numpy() == pytest.approx(middle, rel=0.05, abs=0.05)


def test_a_copy_continues_the_draws_of_an_actor_and_a_reset_begins_others():
    leaf = Leaf(("action",), (2,), torch.float32)
    box = spaces.Box(-1, 1, (2,), np.float32)
    actor = random_actor(EnvSpec(3, (leaf,), (leaf,), box, box))
    for drawn in (0, 1, 3):
        for _ in range(drawn):
            actor.act(())
        copied = pickle.loads(pickle.dumps(actor))
        # Several steps are drawn at once, so the copy has them.
        for _ in range(5 if drawn else 0):
            assert torch.equal(actor.act(())[0], copied.act(())[0])
    last = actor.act(())[0]
    actor.reset()
    first = actor.act(())[0]
    assert (first.shape, first.dtype) == ((3, 2), torch.float32)
    assert not torch.equal(first, last)
    assert not torch.equal(first, copied.act(())[0])


@pytest.mark.parametrize(
    ("elements", "steps"), [(1, 256), (256, 256), (257, 255), (512, 128), (65_536, 1), (10**6, 1), (0, 256)]
)
def test_small_actions_are_drawn_for_many_steps_at_once(elements, steps):
    assert steps_per_draw(elements) == steps
