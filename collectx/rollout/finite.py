"""Raises an error for batches with NaN or infinities in observations, actions or rewards, or with NaN in
log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch

from collectx import progress
from collectx.batch import TRAJ_IDS, Key, PerSlot, Slot, same_size_integer
from collectx.config.problem import opt
from collectx.env.base import EnvSpec
from collectx.errors import DataError, summary_of
from collectx.progress import STEPS


class FiniteCheck:
    """Checks all floating-point leaves of an env's observations, actions and rewards, and the log-probabilities of
    actions, which may be infinite, as a masked action's is. Does not check infos, where NaN often means "no value", or
    other outputs of the policy.

    Args:
        written: keys of the policy's outputs.
        slots: the slots to check, whose tensors are `[rows, steps, *shape]`.
        total_envs: number of envs of all workers, to find an env from a trajectory id.
    """

    def __init__(
        self,
        spec: EnvSpec,
        written: Collection[Key],
        slots: Mapping[int, Slot],
        worker: int,
        first_env: int,
        total_envs: int,
    ):
        self._worker, self._first_env, self._total_envs = worker, first_env, total_envs
        kept = [leaf for leaf in spec.observation if leaf.key[0] != "info" or leaf in spec.inputs]
        observed = [leaf for leaf in kept if leaf.dtype.is_floating_point]
        produced = [leaf.under("next") for leaf in (*observed, *spec.rewards) if leaf.dtype.is_floating_point]
        self._slots: PerSlot[Mapping[Key, Any]] = PerSlot(
            lambda index: {key: self._values(tensor) for key, tensor in slots[index].tensors.items()}
        )
        self._native = spec.native
        # Of tensors on a device, one number is read, the sum of all.
        self._number: Callable[[Any], Any] = float if spec.device is None else lambda total: total
        # NaN in a log-probability means that the policy's weights or outputs are; infinity is that of a masked action.
        self._may_be_infinite = {key for key in written if key[-1].endswith("log_prob")}
        self._actions = [leaf.key for leaf in spec.action if leaf.dtype.is_floating_point]
        # A ragged group fills its slot at the end of the batch.
        self._fills_slots = not spec.ragged
        # In the order in which the values of a step arise.
        keys = (
            *(leaf.key for leaf in observed),
            *self._actions,
            *sorted(self._may_be_infinite),
            *(leaf.key for leaf in produced),
        )
        self._keys = [key for key in keys if key in self._slots[0]]
        self._from_policy = {*written, *self._actions}

    def __call__(self, slot: int, steps: int) -> None:
        """Checks the first `steps` steps of a slot. Waits for the device, if any, for one number. Raises `DataError`
        if a value is not finite; the message names worker, env, key and step of the first one."""
        values = self._slots[slot]
        with np.errstate(over="ignore", invalid="ignore"):
            # NaN and infinities remain in a sum, which costs a fifth of checking each value. Large finite values may
            # overflow, so the values are checked after all.
            if not math.isfinite(sum(self._number(values[key][:, :steps].sum()) for key in self._keys)):
                self._raise_at_first(values, steps)

    def _values(self, tensor: torch.Tensor) -> Any:
        """Returns what the values of a slot are read from: a tensor where numpy lacks the dtype, such as bfloat16."""
        return self._native(tensor) if same_size_integer(tensor.dtype) is None else tensor

    def _is_wrong(self, key: Key, values: Any) -> Any:
        return values != values if key in self._may_be_infinite else ~(abs(values) < math.inf)

    def explain(self, slot: int, error: Exception) -> None:
        """Raises a `DataError` if an action of the batch that `error` ended is not finite, because some envs raise
        errors of their own for such an action. Otherwise does nothing."""
        # Later steps belong to an earlier batch, which its consumer may have changed.
        steps = progress.counts[STEPS] + 1
        for key in self._actions if self._fills_slots else ():
            values = self._slots[slot][key][:, :steps]
            if (wrong := self._is_wrong(key, values)).any():
                value = values[wrong][0]
                raise DataError(
                    f"the policy of worker {self._worker} returned {value} in {'.'.join(key)}, and then the env raised "
                    f"{summary_of(error)}. {_advice('policy')}"
                ) from error

    def _raise_at_first(self, values: Mapping[Key, Any], steps: int) -> None:
        """Raises an error about the first value that is not finite, if there is one."""
        # For each key: the step of its first one, the key's order within a step, the row, and the key.
        places = []
        for order, key in enumerate(self._keys):
            wrong = self._is_wrong(key, values[key][:, :steps])
            if wrong.any():
                found = np.argwhere(torch.as_tensor(wrong).numpy(force=True))
                row, step = found[found[:, 1].argmin(), :2].tolist()
                places.append((step, order, row, key))
        if not places:
            return
        step, _, row, key = min(places)
        env = int(values[TRAJ_IDS][row, step]) % self._total_envs - self._first_env
        value = values[key][row, step]
        value = torch.as_tensor(value[self._is_wrong(key, value)])[0]
        where = f"{env} of worker {self._worker}"
        culprit = "policy" if key in self._from_policy else "env"
        source = f"the policy for env {where}" if culprit == "policy" else f"env {where}"
        raise DataError(
            f"{source} returned {value} in {'.'.join(key)} (step {step} of the batch{_limit(value)}). "
            f"{_advice(culprit)}"
        )


def _limit(value: torch.Tensor) -> str:
    """Returns the limit of the dtype, if the value is an infinity: it may have been finite before it was stored."""
    dtype = str(value.dtype).removeprefix("torch.")
    return f"; the largest {dtype} is {torch.finfo(value.dtype).max:.3g}" if value.isinf() else ""


def _advice(culprit: str) -> str:
    where = "policy, whose weights may not be finite" if culprit == "policy" else culprit
    return f"Fix the {where}, or allow such values with {opt('collector.check_finite=false')}."
