"""Answers the trainer's requests between two batches (env attributes, saved state, profiles), and calls the user's
hooks around batches.
"""

from __future__ import annotations

import copy
import datetime
import inspect
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from collectx.batch import Key, as_key, nest
from collectx.env.wrappers import statistics_of
from collectx.errors import NotRestorableError, ShapeError, summary_of
from collectx.rollout.loop import Rollout
from collectx.state import dumps, loads
from collectx.transport.base import Link, Request
from collectx.transport.plain import packed, unpacked
from collectx.user_objects import Hooks
from collectx.worker import env_settings
from collectx.worker.env_settings import holder_of, resolve
from collectx.worker.generators import ProcessGenerators
from collectx.worker.inference.rollout import ServedRollout
from collectx.worker.profiling import ProfileConfig, Profiling

if TYPE_CHECKING:
    from tensordict import TensorDictBase


def reply_without_state(link: Link, request: Request) -> None:
    """Answers a request to a worker that runs a collector, whose state cannot be saved."""
    name = request.name
    if name in ("ready", "state"):
        link.reply(None)
    else:
        link.reply(
            None, NotImplementedError(f"{name} cannot be used, because your collector_class manages its envs itself")
        )


class RequestHandler:
    """Answers the requests that a worker gets: each public method that takes no link is a request.

    Args:
        generators: the worker's random generators, saved and restored with the rollout.
        batches: `batches(slot, steps)` returns a view of the first steps of a slot, `[*envs, steps]`.
        weights: returns a copy of the policy's newest weights by name, on the CPU.
        is_inline: whether the worker runs in the trainer's process, which then gets objects instead of copies.
    """

    def __init__(
        self,
        worker: int,
        generators: ProcessGenerators,
        rollout: Rollout | ServedRollout,
        hooks: Hooks,
        batches: Callable[[int, int], TensorDictBase],
        weights: Callable[[], dict[str, torch.Tensor]],
        is_inline: bool,
    ):
        self._worker = worker
        self._generators = generators
        self._rollout = rollout
        self._hooks = hooks
        self._batches = batches
        self.weights = weights
        self._is_inline = is_inline
        self._profiling: Profiling | None = None

    @property
    def _envs(self) -> Sequence[Any]:
        return self._rollout.group.user_envs

    def reply(self, link: Link, request: Request) -> None:
        """Calls the method that the request names, and replies with its result or its error."""
        try:
            link.reply(getattr(self, request.name)(*request.arguments))
        except Exception as error:
            link.reply(None, error)

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

    def envs(self) -> Any:
        """Returns the user's env; a list for several envs."""
        return _one_or_all([*self._envs])

    def ready(self) -> None:
        """Does nothing: a reply shows that the envs and the policy are made."""

    def getattr_env(self, path: str) -> Any:
        """Returns the value at `path` in the user's env or its wrappers, see `holder_of` and `resolve`; a list for
        several envs. Raises `TypeError` if the value is not data, so a copy would be useless in the trainer's
        process."""
        values = [resolve(holder_of(env, path), path) for env in self._envs or [self._rollout.group]]
        if not self._is_inline and (others := [each for each in values if not is_data(each)]):
            what = "a method" if inspect.isroutine(others[0]) else f"an object of type {type(others[0]).__qualname__}"
            raise TypeError(
                f"{path!r} is {what} in the worker's env, so calling or changing a copy here would not change the env. "
                "To read data, pass its full path. To call methods or change the env, use call(), set_attr() or "
                "map_fn('env.NAME')."
            )
        return _one_or_all(values)

    def change(self, changes: Sequence[tuple[str, str, Any]]) -> list[Any]:
        """Makes settings in the envs; returns the results of the last setting, one per env, as plain data. `changes`
        are kind, name and content of each; see `collectx.worker.env_settings.change`."""
        results = [env_settings.change(self._rollout, *each) for each in changes]
        return [env_settings.packed_or_none(each) for each in results[-1]]

    def get_attr(self, name: str) -> Any:
        """Returns an attribute of each env as plain data."""
        return packed(env_settings.get_attr(self._rollout, name))

    def load_weights(self, path: str, weights: dict[str, torch.Tensor], only_checks: bool = False) -> None:
        """Copies weights by name into the module at `path` in every env or its wrappers; see `load_into`."""
        for env in self._envs or [self._rollout.group]:
            load_into(holder_of(env, path), path, weights, only_checks)

    def set_hook(self, name: str, hooks: Hooks) -> None:
        """Replaces the hook `name` by the one in `hooks`."""
        self._hooks = replace(self._hooks, **{name: getattr(hooks, name)})

    def profile(self, config: ProfileConfig) -> None:
        """Starts to profile the next batches, after the end of an earlier profile."""
        self.end_profile()
        self._profiling = Profiling(self._worker, config)

    def end_profile(self) -> None:
        """Ends profiling before its last batch."""
        if self._profiling is not None:
            self._profiling.end()
        self._profiling = None

    def reset_some(self, chosen: Sequence[bool]) -> None:
        """Resets the chosen envs of the group."""
        self._rollout.reset_some(np.array(chosen))

    def state(self) -> dict[str, Any]:
        """Returns a copy of the worker's state for `load`: tensors and plain data; the envs are a pickle in a tensor.
        If the envs cannot be saved, `["rollout"]["reason"]` says why. `["normalizers"]` is for evaluations."""
        state: dict[str, Any] = {"rollout": self._rollout.state(), "generators": self._generators.state()}
        if normalizers := statistics_of(self._envs):
            state["normalizers"] = normalizers
        if self._has_state_dicts():
            # A TorchRL env returns the state of its transforms, which the pickled envs contain too. The key has
            # TorchRL's name.
            try:
                saved = [env.state_dict() for env in self._envs]
                try:
                    state["env_state_dict"] = packed(saved)
                except TypeError:
                    if "reason" in state["rollout"]:
                        state["env_state_dict"] = dumps(saved, "their state_dict")
            except Exception as error:
                if "reason" in state["rollout"]:
                    reason = f"saving their state_dict failed too: {summary_of(error)}"
                    state["rollout"]["reason"] += f"; {reason}"
        return state

    def load(self, state: dict[str, Any]) -> str | None:
        """Restores a state. Returns None; or the reason why the envs were not restored, so must be reset."""
        if "env_state_dict" in state and "reason" in state["rollout"] and self._has_state_dicts():
            saved = state["env_state_dict"]
            try:
                is_pickled = isinstance(saved, torch.Tensor)
                saved = loads(saved, None, "the state_dict of the envs") if is_pickled else unpacked(saved)
            except NotRestorableError as error:
                return str(error)
            for env, env_state in zip(self._envs, saved, strict=True):
                env.load_state_dict(env_state)
        reason = self._rollout.load(state["rollout"])
        if reason is None:
            self._generators.load(state["generators"], self._rollout)
        return reason

    def _has_state_dicts(self) -> bool:
        names = ("state_dict", "load_state_dict")
        return bool(self._envs) and all(hasattr(env, name) for env in self._envs for name in names)


# Types of data; `is_data` adds TorchRL's specs if TorchRL was imported.
_DATA: tuple[type, ...] = (int, float, complex, str, bytes, bytearray, type(None), Enum, PurePath)
_DATA += (datetime.date, datetime.timedelta)
_DATA += (np.ndarray, np.generic, np.dtype, torch.Tensor, torch.Size, torch.dtype, torch.device, Space, EnvSpec)


def is_data(value: Any) -> bool:
    """Whether `value` is data, of which a copy is as good: numbers, text, arrays, spaces, specs, and containers of
    these."""
    from tensordict import TensorDictBase

    specs = getattr(sys.modules.get("torchrl.data"), "TensorSpec", ())
    if isinstance(value, (*_DATA, TensorDictBase, specs)):
        return True
    if isinstance(value, Mapping):
        return all(map(is_data, (*value.keys(), *value.values())))
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_data(getattr(value, each.name)) for each in fields(value))
    return isinstance(value, list | tuple | Set | deque) and all(map(is_data, value))


def load_into(value: Any, path: str, weights: dict[str, torch.Tensor], only_checks: bool = False) -> None:
    """Copies weights by name into the module at `path` in `value`; with `only_checks`, leaves the module as it is.
    Raises `TypeError` if there is no module at `path`, or `RuntimeError` if names or shapes differ."""
    module = resolve(value, path)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"{path!r} is of type {type(module).__name__}, not a torch.nn.Module, so it has no weights to load"
        )
    before = copy.deepcopy(module.state_dict()) if only_checks else None
    try:
        module.load_state_dict(weights)
    finally:
        if before is not None:
            module.load_state_dict(before)


def _one_or_all(values: list[Any]) -> Any:
    """Returns the only value; the list if there are several."""
    return values.pop() if len(values) == 1 else values


def check_forms(added: Sequence[Mapping[Key, torch.Tensor]]) -> None:
    """Raises `ShapeError` if the `post_collect_hook` of the workers added different keys, shapes or dtypes to their
    parts, `[rows, steps, *shape]`."""
    forms = [{key: (*value.shape[2:], value.dtype) for key, value in each.items()} for each in added]
    if any(form != forms[0] for form in forms):
        raise ShapeError(
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
                raise ShapeError(f"post_collect_hook must keep {name!r} a tensor of shape {[*before[key].shape]}")
            before[key].copy_(value)
        elif isinstance(value, torch.Tensor):
            added[as_key(key)] = (
                value.detach().to("cpu", copy=True).reshape(-1, batch.shape[-1], *value.shape[seen.ndim :])
            )
        else:
            raise ShapeError(
                f"post_collect_hook added {name!r}, which is of type {type(value).__name__}, but may only add tensors"
            )
    return added
