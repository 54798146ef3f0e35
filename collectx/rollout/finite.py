"""Refuses batches with NaN or infinities in observations or rewards."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NoReturn

import numpy as np

from collectx.batch import TRAJ_IDS, Key, Slot
from collectx.env.base import EnvSpec
from collectx.errors import ShapeError


class FiniteCheck:
    """Checks all floating-point leaves of an env's observations and rewards; not its infos, where NaN often means "no
    value".

    Args:
        spec: of the rollout's env.
        written: keys of the policy's outputs.
        slots: the slots to check, `[rows, steps, *shape]` each.
        worker: its index, for messages.
        first_env: global index of the worker's first env.
        total_envs: envs of all workers, to find an env from a trajectory id.
    """

    def __init__(
        self,
        spec: EnvSpec,
        written: Collection[Key],
        slots: Sequence[Slot],
        worker: int,
        first_env: int,
        total_envs: int,
    ):
        self._written, self._worker, self._first_env, self._total_envs = written, worker, first_env, total_envs
        kept = [leaf for leaf in spec.observation if leaf.key[0] != "info" or leaf in spec.inputs]
        observed = [leaf for leaf in kept if leaf.dtype.is_floating_point]
        produced = [leaf.under("next") for leaf in (*observed, *spec.rewards) if leaf.dtype.is_floating_point]
        self._slots = [slot.arrays() for slot in slots]
        self._keys = [leaf.key for leaf in (*produced, *observed) if leaf.key in self._slots[0]]

    def __call__(self, slot: int, steps: int) -> None:
        """Checks the first `steps` steps of a slot.

        Raises:
            ShapeError: names worker, env, key and step of the first value that is not finite.
        """
        arrays = self._slots[slot]
        with np.errstate(over="ignore", invalid="ignore"):
            for key in self._keys:
                # NaN and infinities remain in a sum, which costs a fifth of checking each value. Large finite values
                # may overflow, so the values are checked after all.
                values = arrays[key][:, :steps]
                if not math.isfinite(values.sum()) and not np.isfinite(values).all():
                    self._raise(key, values, arrays[TRAJ_IDS])

    def _raise(self, key: Key, values: np.ndarray, traj_ids: np.ndarray) -> NoReturn:
        places = np.argwhere(~np.isfinite(values))
        row, step = places[places[:, 1].argmin(), :2].tolist()
        env = traj_ids[row, step] % self._total_envs - self._first_env
        value = values[row, step][~np.isfinite(values[row, step])].flat[0]
        source, culprit = ("the policy for env", "policy") if key in self._written else ("env", "env")
        raise ShapeError(
            f"{'.'.join(key)}: {value} at step {step} of the batch, from {source} {env} of worker {self._worker}: "
            f"values must be finite: fix the {culprit}, or keep such values with collector.check_finite=false "
            "(in Python check_finite=False)"
        )
