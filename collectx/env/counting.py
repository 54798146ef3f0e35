"""Kind `counting`: an env whose observation identifies the frame, so that tests can compare frames for equality.

For tests and for measurements without a simulator.

    observation = (global env index, episode, step, filler ...)      int64
    reward = step (of the observation that follows), action ignored, Discrete(2)

The filler is a function of the first three numbers, so a mixture of two frames is noticed. The episodes of env i
terminate after `episode_length + i % 3` steps, so envs do not end in lockstep.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.config.schema.env import CountingEnvConfig
from collectx.env.base import Env, EnvSpec, StepArrays
from collectx.env.env_indices import EnvNumbers

# The first episode in incarnation n of a worker has the number n times this.
EPISODES_PER_INCARNATION = 2**32
_MIX = np.array([1_000_003, 10_007, 101], np.int64)


class CountingEnv(Env):
    """`cfg.num_envs` counters with the global indices `first_index`, `first_index + 1`, ...

    `reset` returns to the first episode, whatever the seeds are. A `step` of the whole group keeps the processor busy
    for `cfg.step_s` seconds.
    """

    def __init__(self, cfg: CountingEnvConfig, first_index: int, incarnation: int, numbers: EnvNumbers):
        space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (cfg.observation_size,), np.int64)
        leaf = Leaf(("observation",), space.shape, torch.int64)
        action = Leaf(("action",), (), torch.int64)
        self.spec = EnvSpec(cfg.num_envs, (leaf,), (action,), space, spaces.Discrete(2))
        self._step_s = cfg.step_s
        self._index = first_index + np.arange(cfg.num_envs)
        self._length = episode_length(self._index, cfg.episode_length)
        self._first_episode = incarnation * EPISODES_PER_INCARNATION
        self._episode = np.full(cfg.num_envs, self._first_episode, np.int64)
        self._step = np.zeros(cfg.num_envs, np.int64)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._episode[:] = self._first_episode
        self._step[:] = 0
        out[0][:] = self._observation()

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        if self._step_s:
            deadline = time.perf_counter() + self._step_s
            while time.perf_counter() < deadline:
                pass
        self._step += 1
        out.observation[0][:] = self._observation()
        out.reward[:] = self._step
        out.terminated[:] = self._step >= self._length
        return bool(out.terminated.any())

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._episode[ended] += 1
        self._step[ended] = 0
        out[0][ended] = self._observation()[ended]

    def _observation(self) -> np.ndarray:
        return frame(self._index, self._episode, self._step, self.spec.observation[0].shape[0])


def frame(index: np.ndarray, episode: np.ndarray, step: np.ndarray, size: int) -> np.ndarray:
    """Returns the observations `[N, size]` of `[N]` indices, episodes and steps."""
    head = np.stack([index, episode, step], axis=-1).astype(np.int64)
    filler = (head @ _MIX)[:, None] + 7 * np.arange(size - 3, dtype=np.int64)
    return np.concatenate([head, filler], axis=-1)


def episode_length(index: np.ndarray, shortest: int) -> np.ndarray:
    """Returns the number of steps per episode of the envs with these global indices; `shortest` is
    `env.episode_length`."""
    return shortest + index % 3
