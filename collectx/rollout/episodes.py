"""Computes trajectory ids, and returns and lengths of episodes, once per batch, so the step loop does not count."""

from __future__ import annotations

import numpy as np
import torch

# The number of trajectory ids that each incarnation of a worker has for each of its envs.
IDS_PER_INCARNATION = 2**32


class Episodes:
    """Computes trajectory ids, returns and lengths for an env group.

    The n-th trajectory, from 0, of the env with global index g gets the id `g + n * total_envs`. So ids are unique in
    the run although workers do not communicate, and the same seed gives the same ids. `incarnation` is the worker's
    incarnation, whose ids begin at `n = incarnation * IDS_PER_INCARNATION`. `CollectorCore.env_of` finds the env of an
    id."""

    def __init__(self, first_env: int, num_envs: int, total_envs: int, incarnation: int = 0):
        first_id = incarnation * IDS_PER_INCARNATION * total_envs
        self._ids = np.arange(first_env, first_env + num_envs, dtype=np.int64) + first_id
        self.total_envs = total_envs
        # Returns and lengths of the unfinished episodes.
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._arrays = {"traj_ids": self._ids, "returns": self._returns, "lengths": self._lengths}
        self._finished: list[tuple[np.ndarray, np.ndarray]] = []

    def record(self, envs: np.ndarray | slice, reward: np.ndarray, done: np.ndarray, traj_ids: np.ndarray) -> None:
        """Records the next T frames of some envs, and writes their trajectory ids.

        Args:
            envs: indices of the envs in the group, each at most once.
            reward, done: `[T, len(envs)]`, float32 and bool; `done` is True for the last frame of a trajectory.
            traj_ids: `[T, len(envs)]`, int64; this writes it.
        """
        is_finite = np.isfinite(reward)
        if not is_finite.all():  # with `check_finite=False`; otherwise `FiniteCheck` raises an error
            reward = np.where(is_finite, reward, 0)
        ends = np.cumsum(done, axis=0, dtype=np.int64)
        ids = self._ids[envs]
        traj_ids[0] = ids
        np.multiply(ends[:-1], self.total_envs, out=traj_ids[1:])
        traj_ids[1:] += ids
        self._ids[envs] = ids + ends[-1] * self.total_envs
        # Sums and clocks run over all steps of the batch: subtracts their values at the end of the previous episode.
        sums = np.cumsum(reward, axis=0, dtype=np.float64)
        columns, times = done.T.nonzero()
        earlier = np.flatnonzero(columns[1:] == columns[:-1]) + 1
        totals, clocks = sums[times, columns], times + 1
        returns, lengths = totals + self._returns[envs][columns], clocks + self._lengths[envs][columns]
        returns[earlier] = totals[earlier] - totals[earlier - 1]
        lengths[earlier] = clocks[earlier] - clocks[earlier - 1]
        order = np.argsort(times, kind="stable")
        self._finished.append((returns[order], lengths[order]))
        base, start = -self._returns[envs], -self._lengths[envs]
        base[columns], start[columns] = totals, clocks  # the last value of each column stays
        self._returns[envs] = sums[-1] - base
        self._lengths[envs] = len(done) - start

    def abandon(self, envs: np.ndarray | slice = slice(None)) -> None:
        """Drops the unfinished episodes of these envs, whose next frames belong to new trajectories."""
        self._ids[envs] += self.total_envs
        self._returns[envs] = 0
        self._lengths[envs] = 0

    def state(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the state for `load`."""
        return {name: torch.from_numpy(array.copy()) for name, array in self._arrays.items()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, array in self._arrays.items():
            array[:] = state[name].numpy()

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the undiscounted returns, float64, and lengths in frames, int64, of the episodes that ended since the
        last call, `[episodes]` each, in the order of their ends within each `record`. The caller owns the arrays."""
        finished, self._finished = self._finished, []
        if not finished:
            return np.zeros(0), np.zeros(0, np.int64)
        returns, lengths = (np.concatenate(column) for column in zip(*finished, strict=True))
        return returns, lengths
