"""Envs that take their time."""

import random
import time
from functools import partial

import gymnasium
import numpy as np


class Clock(gymnasium.Env):
    """Observes how many steps it has made in its life; an episode has seven."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s=0.0):
        self._step_s = step_s
        self._steps = 0

    def _observation(self):
        return np.array([self._steps], np.float64)

    def reset(self, *, seed=None, options=None):
        return self._observation(), {}

    def step(self, action):
        time.sleep(self._step_s)
        self._steps += 1
        return self._observation(), 0.0, self._steps % 7 == 0, False, {}


# Slow enough to make few steps of a batch before a fast one has made all.
slow_clock = partial(Clock, 0.05)


class Uneven(gymnasium.Wrapper):
    """CartPole whose steps now and then take long, at random, and not by any seed."""

    chance = random.SystemRandom()

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        if self.chance.random() < 0.05:
            time.sleep(0.02 * self.chance.random())
        return super().step(action)
