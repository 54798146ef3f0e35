"""Steps a TorchRL env (`EnvBase`, batched or not), and writes its part of the group's arrays.

    1. `_step` takes the data, which TorchRL calls the root, and returns what TorchRL stores below "next".
    2. The data of the following step is that result, without the reward and with the keys that only the root has.
    3. If an episode has ended, `maybe_reset` replaces its data by those of a new episode.

TorchRL's env classes implement `_step`. `step`, which calls it, accepts partial steps and looks up every spec, which
takes half as long as the step of a small env. So this module calls `_step`, and checks shapes and dtypes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from tensordict import TensorDictBase, is_leaf_nontensor

from collectx.batch import DONE_KEYS, Leaf
from collectx.config.problem import counted
from collectx.env.base import EnvSpec, StepArrays
from collectx.env.spaces import check_value, checked_values
from collectx.env.torchrl import torchrl_envs
from collectx.env.torchrl.specs import has_root_end
from collectx.errors import DataError


class EnvStepper:
    """Steps one TorchRL env; see the module's docstring. `envs` are the positions of its envs in the group. `wrapper`
    is the `GymWrapper` below the env's transforms, or below each of its envs; None without one."""

    def __init__(self, env: Any, spec: EnvSpec, envs: slice, wrapper: Any = None):
        self.envs = envs
        self._env = env
        # How a reset takes seeds: "each env's" by keywords, "all" as a list, or the "first" one; None: by `set_seed`.
        self._seeding: str | None = None
        if wrapper is not None:
            is_vector = isinstance(wrapper._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
            is_batch = bool(env.batch_size) and not wrapper.batch_size
            self._seeding = "each env's" if is_batch else "all" if is_vector else "first"
        # Calls `step` if it is overridden, so does more than `_step`, or if it must add ends that agents omit.
        is_plain = type(env).step.__module__.startswith("torchrl.") and not spec.agents_ends
        self._step: Callable[[Any], Any] = env._step if is_plain else lambda data: env.step(data).get("next")
        self._at = (envs if env.batch_size else envs.start, ...)
        self._leaves = spec.observation
        self._keys = [_plain(leaf.key) for leaf in spec.observation]
        self._actions = [_plain(leaf.key) for leaf in spec.action]
        self._num_rewards = len(spec.rewards)
        self._next_only = spec.next_only_leaves
        self._next_only_keys = [_plain(leaf.key) for leaf in self._next_only]
        # Without ends at the root: the keys of the agents' ends, by their last part.
        ends = [] if has_root_end(env) else [leaf.key for leaf in spec.agents_ends]
        self._agents_ends = {name: [key for key in ends if key[-1] == name] for (name,) in DONE_KEYS} if ends else {}
        # Several batch dimensions are flattened here.
        self._is_flattened = len(env.batch_size) > 1
        self._device = None if env.device is None or env.device.type == "cpu" else env.device
        # Calls `reset`, which takes half the time of `maybe_reset`, if all that the env contains is reset together, and
        # there are no transforms, which may use the argument of `maybe_reset`.
        is_transformed = isinstance(env, torchrl_envs().TransformedEnv)
        self._resets_all = not (env.batch_size or is_transformed or self._agents_ends)
        self._data: Any = None
        # The root keys that `_step` does not write; None before the first step.
        self._kept: list[Any] | None = None

    def reset(self, seeds: list[int] | None, out: Sequence[np.ndarray]) -> None:
        self._data = self._env.reset() if seeds is None else self._seeded_reset(seeds)
        for key, leaf, array in zip(self._keys, self._leaves, out, strict=True):
            value = self._data.get(key, None)
            if value is None:
                array[self._at] = 0
            else:
                self._write(leaf, value, array)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        """Steps its envs, and writes their part of `out`. Returns whether the episode of any env ended."""
        data = self._data
        for key, array in zip(self._actions, action, strict=True):
            # Copied, because the env may keep its action, and the caller overwrites the array.
            value = torch.from_numpy(array[self._at].copy())
            if self._is_flattened:
                value = value.reshape(*self._env.batch_size, *value.shape[1:])
            data.set(key, value if self._device is None else value.to(self._device))
        after = self._step(data)
        if self._kept is None:
            self._kept = self._check_first_step(after)
        # A new TensorDict, because the env may keep the one that it returned.
        following = after.exclude(*self._next_only_keys)
        for key in self._kept:
            following.set(key, data.get(key))
        self._data = following
        for key, leaf, array in zip(self._keys, self._leaves, out.observation, strict=True):
            self._write(leaf, following.get(key, None), array)
        self._write_rewards(after, out)
        return self._write_ends(after, out)

    def _write_rewards(self, after: Any, out: StepArrays) -> None:
        num_envs = self.envs.stop - self.envs.start
        if not out.next_only:
            reward = after.get("reward", None)
            numbers = np.empty(0) if reward is None else _numpy(reward).reshape(-1)
            if len(numbers) != num_envs:
                raise DataError(
                    f"the env returned {counted(len(numbers), 'reward')}, but must return {num_envs}, one per env"
                )
            out.reward[self.envs] = numbers
            return
        total = np.zeros(num_envs)
        for i, (key, leaf, array) in enumerate(zip(self._next_only_keys, self._next_only, out.next_only, strict=True)):
            value = after.get(key, None)
            self._write(leaf, value, array)
            if i < self._num_rewards:
                total += _numpy(value).reshape(num_envs, -1).sum(1)
        out.reward[self.envs] = total

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Resets those of its envs with `ended`, `[E]` bool, and writes their part of `out`."""
        self._data = self._reset_ended(ended)
        for key, leaf, array in zip(self._keys, self._leaves, out, strict=True):
            value = self._data.get(key, None)
            target = array[self.envs]
            if value is None:
                target[ended] = 0
            else:
                values = self._numpy(value if self._env.batch_size else value[None])
                target[ended] = checked_values(leaf, values, target)[ended]

    def _seeded_reset(self, seeds: list[int]) -> Any:
        """Returns the data after a reset with `seeds`. Does not call `set_seed` of a `GymWrapper`, which would reset
        the env once more, so that its first episode would be lost."""
        if self._seeding is None:
            self._env.set_seed(seeds[0])
            return self._env.reset()
        if self._seeding == "each env's":
            return self._env.reset(list_of_kwargs=[{"seed": seed} for seed in seeds])
        return self._env.reset(seed=seeds if self._seeding == "all" else seeds[0])

    def _reset_ended(self, ended: np.ndarray) -> Any:
        if self._resets_all:
            fresh = self._env.reset()
            for key in self._kept or ():
                if fresh.get(key, None) is None:
                    fresh.set(key, self._data.get(key))
            return fresh
        if self._agents_ends:
            # If no agent of an env has ended, marks all of them as done, so that all are reset.
            early = ended & ~self._any_agent(self._data, *self._agents_ends)
            for key in self._agents_ends["done"] if early.any() else ():
                done = self._data.get(key)
                self._data.set(key, done | self._mask(early, done.ndim - len(self._env.batch_size)))
        else:
            self._data.set("done", self._mask(ended, 1))
        return self._env.maybe_reset(self._data)

    def _any_agent(self, data: Any, *names: str) -> np.ndarray:
        """Returns for each env whether one of its agents has ended in one of these ways, `[E]` bool."""
        num_envs = self.envs.stop - self.envs.start
        ended = np.zeros(num_envs, bool)
        for name in names:
            for key in self._agents_ends[name]:
                ended |= _numpy(data.get(key)).reshape(num_envs, -1).any(1)
        return ended

    def _mask(self, envs: np.ndarray, num_dims: int) -> torch.Tensor:
        """Returns `envs`, `[E]`, in the batch size of the env, followed by `num_dims` dimensions of size 1."""
        mask = torch.from_numpy(envs.reshape(*self._env.batch_size, *[1] * num_dims).copy())
        return mask if self._device is None else mask.to(self._device)

    def _write_ends(self, after: Any, out: StepArrays) -> bool:
        """Writes the ends of episodes; returns whether there are any. An env may omit `done`, and `terminated` if it
        equals `done`."""
        if self._agents_ends:
            done, terminated, truncated = (self._any_agent(after, name) for name in self._agents_ends)
        else:
            done = after.get("done", None)
            if done is not None and not done.any():
                return False
            values = {name: after.get(name, None) for (name,) in DONE_KEYS}
            ends = {name: _numpy(value).reshape(-1) for name, value in values.items() if value is not None}
            none = np.zeros(self.envs.stop - self.envs.start, bool)
            done, truncated = ends.get("done", none), ends.get("truncated", none)
            terminated = ends.get("terminated", done)
        out.terminated[self.envs] = terminated
        # Done, but not terminated: truncated.
        out.truncated[self.envs] = truncated | (done & ~terminated)
        return bool((done | terminated | truncated).any())

    def _check_first_step(self, after: Any) -> list[Any]:
        """Checks the keys of the first step. Returns the root keys that the step did not write."""
        for key, leaf in zip(self._keys, self._leaves, strict=True):
            if after.get(key, None) is None and self._data.get(key, None) is None:
                raise DataError(
                    f"the specs declare {'.'.join(leaf.key)!r}, but neither reset nor step writes it. Write it, or "
                    "remove it from the specs."
                )
        if not self._agents_ends and after.get("done", None) is None and after.get("terminated", None) is None:
            raise DataError("step writes neither done nor terminated, so no episode would ever end. Write one of them.")
        written = {*self._actions, *_leaf_keys(after)}
        # `step` puts `after` below "next" of its argument.
        return [key for key in _leaf_keys(self._data) if key not in written and key[0] != "next"]

    def _write(self, leaf: Leaf, value: torch.Tensor | None, array: np.ndarray) -> None:
        """Checks shape and dtype of a value, and writes it into its part of `array`."""
        if value is None:
            raise DataError(
                f"the env wrote {'.'.join(leaf.key)!r} in its first step, but not in this one. Write the same keys "
                "in every step."
            )
        values = self._numpy(value)
        target = array[self._at]
        if values.shape != target.shape or values.dtype != target.dtype:
            if self._env.batch_size:
                values = checked_values(leaf, values, target)
            else:
                check_value(leaf, values, target.dtype, self.envs.start)
        target[...] = values

    def _numpy(self, value: torch.Tensor) -> np.ndarray:
        array = _numpy(value)
        return array.reshape(-1, *array.shape[len(self._env.batch_size) :]) if self._is_flattened else array


def _leaf_keys(data: TensorDictBase) -> list[Any]:
    """Returns the keys of all leaves, including those that are not tensors, such as text. Does not read the leaves,
    because those of agents with different shapes cannot be read together."""
    return [_plain(key) for key in data.keys(True, True, is_leaf=is_leaf_nontensor)]


def _plain(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def _numpy(value: torch.Tensor) -> np.ndarray:
    return value.numpy(force=True)
