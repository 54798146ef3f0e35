"""Answers the trainer's requests between two batches: env attributes, saved state, profiles.

Policy and envs share the worker's global random generators (torch's on the CPU, NumPy's and Python's), until the envs
seed one. From then on, the envs use a separate state while they are called
(`collectx.rollout.wrappers.OwnGeneratorsEnv`). Otherwise an env that calls `torch.manual_seed(0)` in `reset` would give
every episode the same actions.
"""

from __future__ import annotations

import copy
import datetime
import inspect
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from collectx.env.wrappers import statistics_of
from collectx.errors import NotRestorableError, summary_of
from collectx.random_state import HeldGenerators, SeedWatch, load_generators, save_generators, seed_generators
from collectx.rollout.loop import Rollout
from collectx.state import dumps, loads
from collectx.transport.base import Link, Request
from collectx.transport.messages import packed, unpacked
from collectx.user_objects import Hooks
from collectx.worker import env_settings
from collectx.worker.batch_hooks import BatchHooks
from collectx.worker.env_settings import holder_of, resolve
from collectx.worker.inference.rollout import ServedRollout
from collectx.worker.profiling import ProfileConfig
from collectx.worker.spec import Placement, policy_seed, seed_policy


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
    """Answers the requests that a worker gets: each public method except `reply` is a request.

    Args:
        generators: the worker's random generators, saved and restored with the rollout.
        hooks: the hooks around batches, which requests replace, and the profile.
        weights: returns a copy of the policy's newest weights by name, on the CPU.
        is_inline: whether the worker runs in the trainer's process, which then gets objects instead of copies.
    """

    def __init__(
        self,
        generators: ProcessGenerators,
        rollout: Rollout | ServedRollout,
        hooks: BatchHooks,
        weights: Callable[[], dict[str, torch.Tensor]],
        is_inline: bool,
    ):
        self._generators = generators
        self._rollout = rollout
        self._hooks = hooks
        self._weights = weights
        self._is_inline = is_inline

    @property
    def _envs(self) -> Sequence[Any]:
        return self._rollout.group.user_envs

    def reply(self, link: Link, request: Request) -> None:
        """Calls the method that the request names, and replies with its result or its error."""
        try:
            link.reply(getattr(self, request.name)(*request.arguments))
        except Exception as error:
            link.reply(None, error)

    def envs(self) -> Any:
        """Returns the user's env; a list for several envs."""
        return _one_or_all([*self._envs])

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the policy's newest weights by name, on the CPU."""
        return self._weights()

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
        self._hooks.replace(name, getattr(hooks, name))

    def profile(self, config: ProfileConfig) -> None:
        """Starts to profile the next batches, after the end of an earlier profile."""
        self._hooks.profile(config)

    def end_profile(self) -> None:
        """Ends profiling before its last batch."""
        self._hooks.end_profile()

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


class ProcessGenerators:
    """Seeds the global generators when the worker starts, and separates those of the envs if needed."""

    def __init__(self, seed: int, placement: Placement):
        self._seed, self._placement = seed, placement
        self._held: HeldGenerators | None = None
        seed_policy(seed, placement)
        self._watch = SeedWatch()

    def trust(self) -> None:
        """Call this after code other than the envs has seeded the generators."""
        self._watch.renew()

    def reseed(self, seed: int) -> None:
        """Seeds the generators of envs and policy again."""
        self._seed = seed
        seed_policy(seed, self._placement)
        if self._held is not None:
            self._held.add(self._held.names)
            self._seed_policy_apart(self._held.names)
        self._watch.renew()

    def after_reset(self, rollout: Rollout | ServedRollout) -> None:
        """Separates the generators that the envs seeded in their constructors or in a reset with seeds."""
        self._separate(rollout, [*self._watch.seeded(), *self._watch.python_seeded()])

    def after_batch(self, rollout: Rollout | ServedRollout) -> None:
        """Separates the torch and NumPy generators that the envs seeded in the batch. Takes less than 1 µs."""
        if names := self._watch.seeded():
            self._separate(rollout, names)

    def state(self) -> dict[str, Any]:
        """Returns a copy of the generators' states for `load`: tensors and plain data."""
        state: dict[str, Any] = {"seed": self._seed, "policy": save_generators()}
        if self._held is not None:
            with self._held.in_use():
                state["envs"] = save_generators(self._held.names)
        return state

    def load(self, state: dict[str, Any], rollout: Rollout | ServedRollout) -> None:
        self._seed = state["seed"]
        if "envs" in state:
            self._separate(rollout, [*state["envs"]])
            assert self._held is not None
            with self._held.in_use():
                load_generators(state["envs"])
        load_generators(state["policy"])
        self._watch.renew()

    def _separate(self, rollout: Rollout | ServedRollout, names: Sequence[str]) -> None:
        """Gives the current states of these generators to the envs, and seeds the policy's states again."""
        if not names:
            return
        if self._held is None:
            self._held = HeldGenerators(names)
            rollout.hold(self._held)
        else:
            self._held.add([name for name in names if name not in self._held.names])
        self._seed_policy_apart(names)
        self._watch.renew()

    def _seed_policy_apart(self, names: Sequence[str]) -> None:
        seed_generators(policy_seed(self._seed, self._placement, is_apart=True), names)
