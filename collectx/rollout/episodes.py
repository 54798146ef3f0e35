"""Computes trajectory ids, and returns and lengths of episodes, once per batch, so the step loop does not count."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

# The number of trajectory ids that each incarnation of a worker has for each of its envs.
IDS_PER_INCARNATION = 2**32


class Episodes:
    """Computes trajectory ids, returns and lengths for an env group, with arrays, or with tensors for a group on
    `device`.

    The n-th trajectory, from 0, of the env with global index g gets the id `g + n * total_envs`. So ids are unique in
    the run although workers do not communicate, and the same seed gives the same ids. `incarnation` is the worker's
    incarnation, whose ids begin at `n = incarnation * IDS_PER_INCARNATION`. `CollectorCore.env_of` finds the env of an
    id."""

    def __init__(
        self,
        first_env: int,
        num_envs: int,
        total_envs: int,
        incarnation: int = 0,
        device: torch.device | None = None,
    ):
        self.total_envs = total_envs
        first_id = first_env + incarnation * IDS_PER_INCARNATION * total_envs
        # The ids of the current episodes, and the returns and lengths of what they have so far.
        now = {
            "traj_ids": torch.arange(first_id, first_id + num_envs, device=device),
            "returns": torch.zeros(num_envs, dtype=torch.float64, device=device),
            "lengths": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }
        columns = torch.arange(num_envs, device=device)
        self._xp: Any = np if device is None else torch
        self._zeros: Any = np.zeros if device is None else partial(torch.zeros, device=device)
        self._columns: Any = columns.numpy() if device is None else columns
        self._now: dict[str, Any] = {key: value.numpy() if device is None else value for key, value in now.items()}
        self._finished: list[tuple[Any, Any]] = []

    def record(self, envs: np.ndarray | slice, reward: Any, done: Any, traj_ids: Any) -> None:
        """Records the next T frames of some envs, and writes their trajectory ids. Waits for the device, if any.

        Args:
            envs: indices of the envs in the group, each at most once.
            reward, done: `[T, len(envs)]`, float32 and bool; `done` is True for the last frame of a trajectory.
            traj_ids: `[T, len(envs)]`, int64; this writes it.
        """
        xp, now, columns = self._xp, self._now, self._columns[: done.shape[1]]
        ids = now["traj_ids"][envs]
        ends = done.cumsum(0, dtype=ids.dtype)
        traj_ids[0] = ids
        traj_ids[1:] = ends[:-1] * self.total_envs + ids
        now["traj_ids"][envs] = ids + ends[-1] * self.total_envs
        # With `check_finite=False`, rewards that are not finite count as 0; otherwise `FiniteCheck` raises an error.
        sums = xp.where(xp.isfinite(reward), reward, 0).cumsum(0, dtype=now["returns"].dtype)
        times, envs_of = xp.where(done)
        nth = ends[times, envs_of]
        # Sums and clocks run over all steps of the batch: row n contains their values at the n-th end of each env.
        size, finished = (len(done) + 1, len(columns)), []
        for name, at_end, last in (("returns", sums[times, envs_of], sums[-1]), ("lengths", times + 1, len(done))):
            begins = self._zeros(size, dtype=at_end.dtype)
            begins[0] = -now[name][envs]
            begins[nth, envs_of] = at_end
            finished.append(at_end - begins[nth - 1, envs_of])
            now[name][envs] = last - begins[ends[-1], columns]
        self._finished.append((finished[0], finished[1]))

    def abandon(self, envs: np.ndarray | slice = slice(None)) -> None:
        """Drops the unfinished episodes of these envs, whose next frames belong to new trajectories."""
        self._now["traj_ids"][envs] += self.total_envs
        self._now["returns"][envs] = 0
        self._now["lengths"][envs] = 0

    def state(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the state for `load`, on the CPU."""
        return {name: torch.as_tensor(value).to("cpu", copy=True) for name, value in self._now.items()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in self._now.items():
            torch.as_tensor(value).copy_(state[name])

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the undiscounted returns, float64, and lengths in frames, int64, of the episodes that ended since the
        last call, `[episodes]` each, in the order of their ends within each `record`. The caller owns the arrays."""
        finished, self._finished = self._finished, []
        if not finished:
            return np.zeros(0), np.zeros(0, np.int64)
        returns, lengths = (
            np.concatenate([torch.as_tensor(each).numpy(force=True) for each in column])
            for column in zip(*finished, strict=True)
        )
        return returns, lengths
