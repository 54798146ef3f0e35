"""Which trajectory each env is in, and how it went. Used by the rollouts, in the worker's process."""

from __future__ import annotations

import numpy as np


class Episodes:
    """Trajectory ids, returns and lengths of a group of envs.

    The n-th trajectory of the env with global index g has the id `g + n * total_envs`: unique over the run without a
    word between workers, and the same in every run.

    Args:
        first_env: global index of the group's first env.
        num_envs: envs in the group.
        total_envs: envs of all workers.
    """

    def __init__(self, first_env: int, num_envs: int, total_envs: int):
        self.ids = np.arange(first_env, first_env + num_envs, dtype=np.int64)
        self._total_envs = total_envs
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._finished: list[tuple[float, int]] = []

    def add(self, reward: np.ndarray, frame: np.ndarray | int = 1) -> None:
        """Counts one step: `reward` is `[E]`; `frame` says where the step was one, `[E]` bool."""
        self._returns += reward
        self._lengths += frame

    def end(self, ended: np.ndarray) -> np.ndarray:
        """Finishes the episodes of the envs with `ended[e]`, gives those envs new ids; returns their indices."""
        indices = np.flatnonzero(ended)
        self._finished += zip(self._returns[indices].tolist(), self._lengths[indices].tolist(), strict=True)
        self._returns[indices] = 0.0
        self._lengths[indices] = 0
        self.ids[indices] += self._total_envs
        return indices

    def take(self) -> tuple[tuple[float, int], ...]:
        """(return, length) of the episodes that ended since the last call, in order."""
        finished, self._finished = tuple(self._finished), []
        return finished
