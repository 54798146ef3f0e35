"""Which trajectory each frame belongs to, and how episodes went. Computed once per batch from rewards and ends, so that
the step loop need not count. Used by the rollouts, in the worker's process.
"""

from __future__ import annotations

import numpy as np

from collectx.errors import ShapeError


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
        self._ids = np.arange(first_env, first_env + num_envs, dtype=np.int64)
        self._total_envs = total_envs
        # Of the episodes that are under way.
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._finished: list[tuple[float, int]] = []

    def record(self, envs: np.ndarray | slice, reward: np.ndarray, done: np.ndarray, traj_ids: np.ndarray) -> None:
        """Takes the next T frames of some envs; writes their trajectory ids.

        Args:
            envs: which envs of the group, each at most once.
            reward, done: `[T, len(envs)]` float32 and bool.
            traj_ids: `[T, len(envs)]` int64, written.

        Raises:
            ShapeError: a reward is NaN, which is also what None becomes.
        """
        if np.isnan(reward).any():
            t, column = (int(axis[0]) for axis in np.isnan(reward).nonzero())
            env = int(np.arange(len(self._ids))[envs][column])
            raise ShapeError(f"reward: env {env} of this group gave NaN or None at step {t} of the batch")
        ends = np.cumsum(done, axis=0, dtype=np.int64)
        ids = self._ids[envs]
        traj_ids[0] = ids
        np.multiply(ends[:-1], self._total_envs, out=traj_ids[1:])
        traj_ids[1:] += ids
        self._ids[envs] = ids + ends[-1] * self._total_envs
        sums = np.cumsum(reward, axis=0, dtype=np.float64)
        # What the sums and the clock showed when the present episode began.
        base = -self._returns[envs]
        start = -self._lengths[envs]
        for t, column in zip(*(axis.tolist() for axis in done.nonzero()), strict=True):
            self._finished.append((float(sums[t, column] - base[column]), int(t + 1 - start[column])))
            base[column] = sums[t, column]
            start[column] = t + 1
        self._returns[envs] = sums[-1] - base
        self._lengths[envs] = len(done) - start

    def take(self) -> tuple[tuple[float, int], ...]:
        """(return, length) of the episodes that ended since the last call, in order of time."""
        finished, self._finished = tuple(self._finished), []
        return finished
