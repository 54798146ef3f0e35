"""Calls the user's hooks around batches, in the worker, and counts the batches of a profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from collectx.batch import Key, as_key, nest
from collectx.errors import DataError
from collectx.user_objects import Hooks
from collectx.worker.profiling import ProfileConfig, Profiling

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class BatchHooks:
    """The hooks of a worker, and its profile. `batches(slot, steps)` returns a view of the first steps of a slot,
    `[*envs, steps]`."""

    def __init__(self, worker: int, hooks: Hooks, batches: Callable[[int, int], TensorDictBase]):
        self._worker = worker
        self._hooks = hooks
        self._batches = batches
        self._profiling: Profiling | None = None

    def before_batch(self) -> None:
        if self._hooks.pre_collect_hook is not None:
            self._hooks.pre_collect_hook()

    def after_batch(self, slot: int, steps: int) -> dict[Key, torch.Tensor]:
        """Calls the hooks with the first `steps` steps of a slot, and counts a batch of the profile. Returns the
        tensors that `post_collect_hook` added; see `SlotReport.added`."""
        hooks, added = self._hooks, {}
        if hooks.post_collect_hook is not None:
            added = _call_hook(hooks.post_collect_hook, self._batches(slot, steps))
        if hooks.write_batch is not None:
            batch = self._batches(slot, steps)
            shaped = {key: value.view(*batch.shape, *value.shape[2:]) for key, value in added.items()}
            hooks.write_batch(batch.clone(recurse=False).update(nest(shaped)) if added else batch)
        if self._profiling is not None and not self._profiling.step():
            self._profiling = None
        return added

    def replace(self, name: str, hook: Callable | None) -> None:
        """Replaces the hook `name`."""
        self._hooks = dataclasses.replace(self._hooks, **{name: hook})

    def profile(self, config: ProfileConfig) -> None:
        """Starts to profile the next batches, after the end of an earlier profile."""
        self.end_profile()
        self._profiling = Profiling(self._worker, config)

    def end_profile(self) -> None:
        """Ends profiling before its last batch."""
        if self._profiling is not None:
            self._profiling.end()
        self._profiling = None


def check_forms(added: Sequence[Mapping[Key, torch.Tensor]]) -> None:
    """Raises `DataError` if the `post_collect_hook` of the workers added different keys, shapes or dtypes to their
    parts, `[rows, steps, *shape]`."""
    forms = [{key: (*value.shape[2:], value.dtype) for key, value in each.items()} for each in added]
    if any(form != forms[0] for form in forms):
        raise DataError(
            f"post_collect_hook added different keys, shapes or dtypes in different workers: {forms}. Add the same "
            "ones in all workers."
        )


def _call_hook(hook: Callable[[TensorDictBase], Any], batch: TensorDictBase) -> dict[Key, torch.Tensor]:
    """Calls `hook` with `batch`, `[*envs, steps]`. Copies the tensors that it replaced into the batch; returns copies
    of those that it added, `[rows, steps, *shape]`, on the CPU."""
    from tensordict import TensorDictBase

    seen = batch.clone(recurse=False)
    before = dict(seen.items(include_nested=True, leaves_only=True))
    hook(seen)
    added = {}
    for key, value in seen.items(include_nested=True):
        if isinstance(value, TensorDictBase) or value is before.get(key):
            continue
        name = ".".join(as_key(key))
        if key in before:
            if not isinstance(value, torch.Tensor) or value.shape != before[key].shape:
                raise DataError(f"post_collect_hook must keep {name!r} a tensor of shape {[*before[key].shape]}")
            before[key].copy_(value)
        elif isinstance(value, torch.Tensor):
            added[as_key(key)] = (
                value.detach().to("cpu", copy=True).reshape(-1, batch.shape[-1], *value.shape[seen.ndim :])
            )
        else:
            raise DataError(
                f"post_collect_hook added {name!r}, which is of type {type(value).__name__}, but may only add tensors"
            )
    return added
