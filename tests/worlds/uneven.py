"""A CartPole whose steps now and then take long, at random, and not by any seed."""

from __future__ import annotations

import random
import time

import gymnasium

_CHANCE = random.SystemRandom()


class Uneven(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        if _CHANCE.random() < 0.05:
            time.sleep(0.02 * _CHANCE.random())
        return super().step(action)
