"""Envs and policies that fail on purpose, or write which weights they acted with. Imported by worker processes."""

import math
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from torch import nn

from collectx.env.counting import EPISODES_PER_INCARNATION


class BrokenLever(Exception):
    """An exception of the user's own, with arguments that pickle must bring along."""

    def __init__(self, lever: str, force: int):
        super().__init__(lever, force)
        self.lever = lever
        self.force = force


class Wordless(Exception):
    """Has no text."""

    def __str__(self):
        raise RuntimeError("no words")


# Of the tests that need a GPU.
DEVICE = os.environ.get("COLLECTX_TEST_DEVICE", "cuda")
FAULTS = {
    "raises": lambda: throw(BrokenLever("left", 3)),
    "wordless": lambda: throw(Wordless()),
    "stop_iteration": lambda: throw(StopIteration("an iterator ran out in the env")),
    "exits": lambda: sys.exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # What it has sent over a network before leaves its process in another thread.
    "killed_after_sending": lambda: (time.sleep(0.1), os.kill(os.getpid(), signal.SIGKILL)),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleeps": lambda: time.sleep(1000),
    "locks": lambda: [lock.acquire() for lock in [threading.Lock()] * 2],
    # A petabyte; and an index that a kernel finds to be out of range.
    "device_memory": lambda: torch.empty(2**50, device=DEVICE),
    "device_index": lambda: torch.zeros(2, device=DEVICE)[torch.tensor([5], device=DEVICE)].sum().item(),
    "warns": lambda: warnings.warn("the env warns", stacklevel=1),
}


def throw(error: Exception) -> None:
    raise error


def pull_the_lever(fault: str) -> None:
    FAULTS[fault]()


class FaultyEnv(gymnasium.Env):
    """Steps `at_step` times, then makes the file `sign`, if there is one, and fails at every step; with -1 it fails at
    every reset. `at_close` is what happens when it is closed. A step takes `step_s`."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str, at_step: int, sign: str | None = None, at_close: str | None = None, step_s=0.0):
        self._fault, self._left, self._sign, self._at_close, self._step_s = fault, at_step, sign, at_close, step_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self._left < 0:
            pull_the_lever(self._fault)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        time.sleep(self._step_s)
        if self._left < 0:
            if self._sign is not None:
                Path(self._sign).touch()
            pull_the_lever(self._fault)
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def close(self):
        if self._at_close is not None and self._left < 0:
            pull_the_lever(self._at_close)


class NotFinite(gymnasium.Env):
    """Observes `value` in its step `at`, which ends the episode; 0: in its reset."""

    observation_space = spaces.Dict(pose=spaces.Box(-np.inf, np.inf, (2,)), count=spaces.Discrete(9))
    action_space = spaces.Discrete(2)

    def __init__(self, value: float, at: int):
        self._value, self._at = value, at

    def reset(self, *, seed=None, options=None):
        self._count = 0
        return self._observe(), {"speed": math.nan}

    def step(self, action):
        self._count += 1
        return self._observe(), 1.0, self._count == self._at, self._count == 8, {"speed": math.nan}

    def _observe(self):
        pose = np.array([0.0, self._value if self._count == self._at else 1.0], np.float32)
        return {"pose": pose, "count": self._count}


class FailingPolicy(nn.Module):
    """Acts on counting envs; fails in the 20th episode of the env of global index `env`, in each of the first
    `lives` lives of its worker."""

    def __init__(self, fault: str, env: int, lives: int = 1):
        super().__init__()
        self._fault, self._env, self._lives = fault, env, lives

    def forward(self, observation):
        for env, episode, step in observation[:, :3].tolist():
            incarnation, episode = divmod(episode, EPISODES_PER_INCARNATION)
            if (env, episode, step) == (self._env, 19, 3) and incarnation < self._lives:
                pull_the_lever(self._fault)
        return torch.zeros(len(observation), dtype=torch.int64)


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
