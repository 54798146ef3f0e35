"""Envs and policies that go wrong on purpose, or tell what they acted with. Imported by worker processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from torch import nn


class BrokenLever(Exception):
    """An exception of the user's own, with arguments that pickle must bring along."""

    def __init__(self, lever: str, force: int):
        super().__init__(lever, force)
        self.lever = lever
        self.force = force


class Unpicklable(Exception):
    """Holds a lock, so that it cannot travel as it is."""

    def __init__(self, text: str):
        super().__init__(text)
        self.lock = threading.Lock()


class FaultyEnv(gymnasium.Env):
    """Steps `at_step` times, then does what `fault` says; with `claim`, only the first to make that file does."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str, at_step: int, claim: str | None = None):
        if fault == "init":
            raise BrokenLever("left", 3)
        self._fault = fault
        self._left = at_step
        self._claim = claim

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        if self._left < 0 and self._is_mine():
            pull_the_lever(self._fault)
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def _is_mine(self) -> bool:
        if self._claim is None:
            return True
        try:
            os.close(os.open(self._claim, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self._left = sys.maxsize
            return False
        return True


def pull_the_lever(fault: str) -> None:
    if fault == "builtin":
        raise ZeroDivisionError("the env divided by zero")
    if fault == "custom":
        raise BrokenLever("left", 3)
    if fault == "unpicklable":
        raise Unpicklable("holds a lock")
    if fault == "stop_iteration":
        raise StopIteration("an iterator ran out in the env")
    if fault == "exit":
        sys.exit(0)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(1000)
    if fault == "warn":
        return warnings.warn("the env warns", stacklevel=1)
    raise AssertionError(f"no such fault: {fault}")


class RaisingPolicy(nn.Module):
    """Acts `at_call` times, then raises."""

    def __init__(self, at_call: int):
        super().__init__()
        self._left = at_call

    def forward(self, observation):
        self._left -= 1
        if self._left < 0:
            raise BrokenLever("policy", 7)
        return torch.zeros(observation.shape[0], dtype=torch.int64)


class _Number(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.number = nn.Parameter(torch.zeros(size))

    def forward(self, observation):
        rows = observation.shape[0]
        low, high = self.number.min(), self.number.max()
        return torch.zeros(rows, dtype=torch.int64), low.expand(rows), high.expand(rows)


def telling_policy(size: int):
    """Writes the smallest and the largest of its `size` weights as ("low",) and ("high",): equal unless torn."""
    return TensorDictModule(_Number(size), in_keys=["observation"], out_keys=["action", "low", "high"])


def step_counting_policy():
    """Acts by what it reads as ("step_count",): the lowest bit."""
    return TensorDictModule(lambda count: count[:, 0] % 2, in_keys=["step_count"], out_keys=["action"])


class _Leaning(nn.Module):
    def forward(self, observation):
        # Pushes to the side to which the pole falls: longer episodes than at random, the same ones every time.
        return (observation[:, 3] > 0).long()


def leaning_policy():
    """A CartPole policy without random numbers."""
    return TensorDictModule(_Leaning(), in_keys=["observation"], out_keys=["action"])
