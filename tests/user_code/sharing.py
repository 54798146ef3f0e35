"""State that envs of other modules share: in classes, in this module and in its functions (`shapes.py`)."""

from typing import ClassVar

import gymnasium
import numpy as np

calls = [0]


class Common:
    """A base class with data of its own."""

    rng = np.random.default_rng(0)
    space = gymnasium.spaces.Discrete(1000, seed=0)
    drawn: ClassVar[list[float]] = []


class Counting(type):
    """A metaclass that counts."""

    count = 0


class Clock:
    def __init__(self):
        self.time = 0

    def tick(self, hours):
        self.time += hours
        return self.time


def called(times, seen=[]):  # noqa: B006
    """Counts in the module, in a default and in an attribute of its own."""
    calls[0] += times
    seen.append(times)
    called.total += times
    return calls[0] + 3 * sum(seen) + 5 * called.total


called.total = 0


class Registry:
    """Nobody makes an object of it."""

    class Names:
        used = 0
