"""An env that seeds the global generators, as many do, and draws from them; a policy that draws from them."""

import random

import gymnasium
import numpy as np
import torch


class Seeding(gymnasium.Env):
    """Observes a draw of each global generator. Episodes have 4 steps.

    Args:
        seeds: whether `reset` seeds the generators, always with the same number.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(1000)

    def __init__(self, seeds=True):
        self._seeds = seeds

    def reset(self, *, seed=None, options=None):
        if self._seeds:
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
        self._steps = 0
        return self._draw(), {}

    def step(self, action):
        self._steps += 1
        return self._draw(), 0.0, False, self._steps == 4, {}

    @staticmethod
    def _draw():
        # NumPy draws normal numbers in pairs, and keeps the second one.
        return np.array([torch.rand(()).item(), np.random.normal(), random.random()], np.float32)


class Drawing:
    """A policy that draws from the three generators. Its actions are those of torch."""

    def __call__(self, td):
        td["numpy"], td["python"] = (torch.full((*td.shape, 1), draw()) for draw in (np.random.normal, random.random))
        td["action"] = torch.randint(1000, td.shape)
        return td
