"""Kind `torchrl`: TorchRL's envs (`EnvBase`: wrapped, batched or not, with transforms), one after the other. torchrl
itself is not imported.

Called by the rollout, in the worker's process. Must not know slots, trajectories or policies.

    data --_step--> after: next.*          data: what TorchRL calls the root
     ^                |
     '--- without ----'  the reward, with what only the root has
     '--- maybe_reset, where an episode ended

`_step` is what TorchRL's env classes implement. `step` around it accepts partial steps and looks up every spec anew,
which for a small env costs half as much again: here shapes and dtypes are checked in the first step, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from collectx.batch import DONE_KEYS, REWARD, Leaf, is_agents_end
from collectx.config import TorchrlEnvConfig
from collectx.env.base import EnvSpec, StepRows
from collectx.env.gym_factory import resolve
from collectx.env.spaces import check, checked_rows
from collectx.env.torchrl_specs import (
    action_specs,
    draws,
    has_root_end,
    is_torchrl_env,
    leaves_of,
    observation_specs,
    reward_leaves,
    space_of,
)
from collectx.errors import ConfigError, ShapeError, SpaceError

# Of transforms that do nothing themselves.
_IDLE_HOOKS = ("Transform._post_step_mdp_hooks", "Compose._post_step_mdp_hooks")


class TorchrlEnv:
    """A group of TorchRL's envs: unbatched ones, or one of batch size `[N]`, or of several dimensions.

    Every leaf of the observation and state specs is one of the batch, at the root and below `next`, under its own key:
    one that the env writes at the root alone is repeated below `next`, one that it writes below `next` alone is zero at
    the root of an episode's first frame. So are the ends of groups of agents; an episode ends with the env's own. Where
    the env as a whole has no end, an episode ends as soon as any of its agents does, and `restart` resets those that
    have ended; it resets all of them where none has (a caller that cuts trajectories short). Rewards are below `next`,
    of whatever keys and shapes. An env is seeded by `set_seed`, a batched one with `seeds[0]`, which it spreads.

    Args:
        envs: unbatched envs with the same specs, or one batched env; of several dimensions, they stand in them in a
            batch too, but one after the other for policy and actions.
        owned: whether they are closed with the group.
        exclude: keys of the observation and state specs that are no leaves of the batch; see `observation_specs`.

    Raises:
        ConfigError: an env that resets by itself, or changes frames after their step, or has none of a key to exclude.
        SpaceError: specs that a batch does not have.
    """

    def __init__(self, envs: Sequence[Any], owned: bool = True, exclude: Sequence[str] = ()):
        self._owned = owned
        self._envs = list(envs)
        try:
            first = self._envs[0]
            for env in self._envs:
                _check(env, alone=len(self._envs) == 1)
            num_envs = first.batch_size.numel() if first.batch_size else len(self._envs)
            observed, acted = observation_specs(first, exclude), action_specs(first)
            leaves, action, rewards = _leaves(first, exclude)
            if any(_leaves(env, exclude) != (leaves, action, rewards) for env in self._envs[1:]):
                raise SpaceError("the envs of a group must have the same specs, and these have not")
        except BaseException:
            with contextlib.suppress(Exception):  # which would hide the first error
                self.close()
            raise
        dims = len(first.batch_size)
        seen = [leaf for leaf in leaves if leaf.key[0] == "observation"]
        seen = seen or [leaf for leaf in leaves if not is_agents_end(leaf)]
        self.spec = EnvSpec(
            num_envs,
            leaves,
            action,
            space_of(observed, seen, dims),
            space_of(acted, action, dims),
            rewards=rewards,
            batch_shape=tuple(first.batch_size) if dims > 1 else (),
            draw=lambda: draws(envs, action),
        )
        rows = [slice(0, num_envs)] if dims else [slice(e, e + 1) for e in range(num_envs)]
        self._parts = [_Part(env, self.spec, own) for env, own in zip(self._envs, rows, strict=True)]

    @property
    def user_envs(self) -> list[Any]:
        """What the user has made."""
        return list(self._envs)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        for part in self._parts:
            part.reset(None if seeds is None else int(seeds[part.rows.start]), out)

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        any_ended = False
        for part in self._parts:
            any_ended |= part.step(action, out)
        return any_ended

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        for part in self._parts:
            if ended[part.rows].any():
                part.restart(ended[part.rows], out)

    def close(self) -> None:
        envs, self._envs = self._envs, []
        for env in envs if self._owned else ():
            if not env.is_closed:
                env.close()


class _Part:
    """One EnvBase, and where its rows lie in the group's arrays."""

    def __init__(self, env: Any, spec: EnvSpec, rows: slice):
        self.rows = rows
        self._env = env
        # `step` is not meant to be overridden; where it is, it does more. It fills in the ends that agents leave out.
        plain = type(env).step.__module__.startswith("torchrl.") and not any(map(is_agents_end, spec.observation))
        self._step: Callable[[Any], Any] = env._step if plain else lambda data: env.step(data).get("next")
        self._at = (rows if env.batch_size else rows.start, ...)
        self._leaves = spec.observation
        self._keys = [_plain(leaf.key) for leaf in spec.observation]
        self._actions = [_plain(leaf.key) for leaf in spec.action]
        self._reward_leaves = spec.rewards
        self._rewards = [_plain(leaf.key) for leaf in spec.rewards]
        self._write_reward = self._write_one if spec.rewards == (REWARD,) else self._write_all
        # Of an env that has no end as a whole: the keys of its groups' ends, by their last names.
        self._groups_ends: dict[str, list[Any]] = {}
        if not has_root_end(env):
            ends = [leaf.key for leaf in spec.observation if is_agents_end(leaf)]
            self._groups_ends = {name: [key for key in ends if key[-1:] == (name,)] for (name,) in DONE_KEYS}
        # Envs in several dimensions are one after the other here.
        self._size = tuple(env.batch_size) if len(env.batch_size) > 1 else None
        self._numpy = _numpy if self._size is None else self._flat
        self._device = None if env.device is None or env.device.type == "cpu" else env.device
        # `maybe_reset` resets those that are done, at twice the cost; transforms may look at what they are told there.
        is_transformed = any(cls.__name__ == "TransformedEnv" for cls in type(env).__mro__)
        self._resets_whole = not (env.batch_size or is_transformed or self._groups_ends)
        self._data: Any = None
        # What `_step` does not write, known from the first one.
        self._kept: list[Any] | None = None

    def reset(self, seed: int | None, out: Sequence[np.ndarray]) -> None:
        if seed is not None:
            self._env.set_seed(seed)
        self._data = self._env.reset()
        for key, leaf, array in zip(self._keys, self._leaves, out, strict=True):
            value = self._data.get(key, None)
            if value is None:
                array[self._at] = 0
            else:
                self._write(leaf, value, array)

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        """Writes its rows of `out`; whether any env ended."""
        data = self._data
        for key, array in zip(self._actions, action, strict=True):
            # A copy, as the env may keep it while the array is the caller's and will be written again.
            value = torch.from_numpy(array[self._at].copy())
            if self._size is not None:
                value = value.reshape(*self._size, *value.shape[1:])
            data.set(key, value if self._device is None else value.to(self._device))
        after = self._step(data)
        if self._kept is None:
            self._kept = self._look(after)
        # What comes next is not to be seen in what the env has returned.
        following = after.exclude(*self._rewards)
        for key in self._kept:
            following.set(key, data.get(key))
        self._data = following
        for key, leaf, array in zip(self._keys, self._leaves, out.observation, strict=True):
            self._write(leaf, following.get(key, None), array)
        self._write_reward(after, out)
        return self._write_ends(after, out)

    def _write_one(self, after: Any, out: StepRows) -> None:
        reward, mine = after.get("reward", None), out.reward[self.rows]
        rows = np.empty(0) if reward is None else _numpy(reward).reshape(-1)
        if rows.shape != mine.shape:
            raise ShapeError(f"reward: expected {len(mine)} numbers, one for each env, got {len(rows)}")
        mine[:] = rows

    def _write_all(self, after: Any, out: StepRows) -> None:
        num_envs = self.rows.stop - self.rows.start
        total = np.zeros(num_envs)
        for key, leaf, array in zip(self._rewards, self._reward_leaves, out.rewards, strict=True):
            value = after.get(key, None)
            self._write(leaf, value, array)
            total += _numpy(value).reshape(num_envs, -1).sum(1)
        out.reward[self.rows] = total

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Resets the envs with `ended`, and writes their rows."""
        self._data = self._fresh(ended)
        for key, leaf, array in zip(self._keys, self._leaves, out, strict=True):
            value = self._data.get(key, None)
            mine = array[self.rows]
            if value is None:
                mine[ended] = 0
            else:
                rows = self._numpy(value if self._env.batch_size else value[None])
                mine[ended] = checked_rows(leaf, rows, mine)[ended]

    def _fresh(self, ended: np.ndarray) -> Any:
        if self._resets_whole:
            fresh = self._env.reset()
            for key in self._kept or ():
                if fresh.get(key, None) is None:
                    fresh.set(key, self._data.get(key))
            return fresh
        if self._groups_ends:
            self._end_groups(ended & ~self._any_group(self._data, *self._groups_ends))
        else:
            self._data.set("done", self._mask(ended, 1))
        return self._env.maybe_reset(self._data)

    def _end_groups(self, envs: np.ndarray) -> None:
        """Marks every agent of some envs as done, so that all of them are reset."""
        for key in self._groups_ends["done"] if envs.any() else ():
            done = self._data.get(key)
            self._data.set(key, done | self._mask(envs, done.ndim - len(self._env.batch_size)))

    def _any_group(self, data: Any, *names: str) -> np.ndarray:
        """In which envs an agent has one of these ends, `[E]`."""
        num_envs = self.rows.stop - self.rows.start
        found = np.zeros(num_envs, bool)
        for name in names:
            for key in self._groups_ends[name]:
                found |= _numpy(data.get(key)).reshape(num_envs, -1).any(1)
        return found

    def _mask(self, envs: np.ndarray, num_dims: int) -> torch.Tensor:
        """`[E]` as the env takes it, with so many more dimensions of size 1."""
        mask = torch.from_numpy(envs.reshape(*self._env.batch_size, *[1] * num_dims).copy())
        return mask if self._device is None else mask.to(self._device)

    def _write_ends(self, after: Any, out: StepRows) -> bool:
        """An env may leave out `done`, or `terminated` where it is the same as `done`."""
        if self._groups_ends:
            done, terminated, truncated = (self._any_group(after, name) for name in self._groups_ends)
            out.terminated[self.rows] = terminated
            # What is done for no reason that it gives is cut short.
            out.truncated[self.rows] = truncated | (done & ~terminated)
            return bool((done | terminated | truncated).any())
        done = after.get("done", None)
        if done is not None and not done.any():
            return False
        terminated, truncated = after.get("terminated", None), after.get("truncated", None)
        if done is None:
            done = terminated if truncated is None else terminated | truncated
        rows = self.rows
        done = _numpy(done).reshape(-1)
        out.terminated[rows] = done if terminated is None else _numpy(terminated).reshape(-1)
        if truncated is not None:
            out.truncated[rows] = _numpy(truncated).reshape(-1)
        # What is done for no reason that it gives is cut short.
        out.truncated[rows] |= done & ~out.terminated[rows]
        return bool(done.any())

    def _look(self, after: Any) -> list[Any]:
        """Looks at what the first step has written: returns the keys that it has not."""
        for key, leaf in zip(self._keys, self._leaves, strict=True):
            if after.get(key, None) is None and self._data.get(key, None) is None:
                raise ShapeError(f"{'.'.join(leaf.key)}: is in the specs, but neither reset nor step writes it")
        if not self._groups_ends and after.get("done", None) is None and after.get("terminated", None) is None:
            raise ShapeError("the env's step writes neither done nor terminated, so that no episode would end")
        left_out = {*self._actions, *_leaf_keys(after)}
        # Where `step` was called, it has put `after` below "next" in what it was given.
        return [key for key in _leaf_keys(self._data) if key not in left_out and key[0] != "next"]

    def _write(self, leaf: Leaf, value: torch.Tensor | None, array: np.ndarray) -> None:
        """Writes the value of one env or of several into its rows of `array`, after checking its shape and dtype."""
        if value is None:
            raise ShapeError(f"{'.'.join(leaf.key)}: this step of the env does not write it, as its first step did")
        rows = self._numpy(value)
        mine = array[self._at]
        if rows.shape != mine.shape or rows.dtype != mine.dtype:
            if self._env.batch_size:
                rows = checked_rows(leaf, rows, mine)
            else:
                check(leaf, rows, mine.dtype, self.rows.start)
        mine[...] = rows

    def _flat(self, value: torch.Tensor) -> np.ndarray:
        """Of envs in several dimensions."""
        assert self._size is not None
        return _numpy(value).reshape(-1, *value.shape[len(self._size) :])


def make_torchrl(cfg: TorchrlEnvConfig) -> TorchrlEnv:
    """The group of `cfg.num_envs` envs that `cfg.target` makes: as many, or one of that batch size.

    Raises:
        ConfigError: the target cannot be imported, or makes something else.
        SpaceError: see `TorchrlEnv`.
    """
    make = resolve(cfg.target, "env.target")
    made = make(**cfg.kwargs)
    if not is_torchrl_env(made):
        raise ConfigError([f"env.target={cfg.target}: returned {type(made).__name__}, expected an EnvBase of TorchRL."])
    if made.batch_size:
        envs = split(made)
        if made.batch_size.numel() != cfg.num_envs:
            raise ConfigError(
                [
                    f"env.num_envs={cfg.num_envs}, but env.target={cfg.target} makes an env of batch size "
                    f"{list(made.batch_size)}: use env.num_envs={made.batch_size.numel()}."
                ]
            )
        return TorchrlEnv(envs, exclude=cfg.exclude_keys)
    return TorchrlEnv([made, *(make(**cfg.kwargs) for _ in range(cfg.num_envs - 1))], exclude=cfg.exclude_keys)


def split(env: Any) -> list[Any]:
    """The envs that a `SerialEnv` would make, as it would step them one by one as well, at about twice the cost; any
    other env, or one that is at work already, alone."""
    if type(env).__name__ != "SerialEnv" or len(env.batch_size) != 1 or not env.is_closed:
        return [env]
    each = [env.create_env_kwargs] * env.num_workers
    if not isinstance(env.create_env_kwargs, Mapping):
        each = [kwargs or {} for kwargs in env.create_env_kwargs]
    return [make(**kwargs) for make, kwargs in zip(env.create_env_fn, each, strict=True)]


def _check(env: Any, alone: bool) -> None:
    name = type(env).__name__
    resets = type(env).step_and_maybe_reset.__module__ not in ("torchrl.envs.common", "torchrl.envs.batched_envs")
    if resets or vars(env).get("_torchrl_native_autoreset", False):
        raise ConfigError(
            [f"{name} resets its envs by itself, within a step: use the env below it with env=gym_vector or envpool."]
        )
    if env.batch_size and not alone:
        raise ConfigError([f"{name} has the batch size {list(env.batch_size)}: it is a group by itself."])
    if changing := _changes_steps(env):
        raise ConfigError(
            [
                f"{changing} has _post_step_mdp_hooks, by which a frame's keys below next are not those at its root: "
                "leave it out, and change what was collected, as with postproc or a replay buffer's transforms."
            ]
        )


def _changes_steps(env: Any) -> str | None:
    """Which of an env and its transforms changes frames after their step, by hooks that only a rollout of TorchRL's own
    calls."""
    names = [cls.__name__ for cls in type(env).__mro__]
    if "TransformedEnv" not in names:
        return None if getattr(env, "_post_step_mdp_hooks", None) is None else names[0]
    for transform in getattr(env.transform, "transforms", [env.transform]):
        if type(transform)._post_step_mdp_hooks.__qualname__ not in _IDLE_HOOKS:
            return type(transform).__name__
    return _changes_steps(env.base_env)


def _leaves(env: Any, exclude: Sequence[str]) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...], tuple[Leaf, ...]]:
    """What it observes, takes and gives."""
    return leaves_of(observation_specs(env, exclude), env), leaves_of(action_specs(env), env), reward_leaves(env)


def _leaf_keys(data: TensorDictBase) -> list[Any]:
    """The keys of its leaves, of those too that are no tensors, as texts."""
    return [_plain(key) for key in data.keys(True) if not _is_node(data.get(key))]


def _is_node(value: Any) -> bool:
    return isinstance(value, TensorDictBase) and not type(value).__name__.startswith("NonTensor")


def _plain(key: Any) -> Any:
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def _numpy(value: torch.Tensor) -> np.ndarray:
    return value.numpy(force=True)
