"""Converts TorchRL's specs to leaves of a batch and to Gymnasium spaces, and draws random actions from them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv

from collectx.batch import DONE_KEYS, STEP_COUNT, Key, Leaf, as_key, is_integer, is_numeric, nest, nested_dims
from collectx.env.base import EnvSpec, steps_per_draw
from collectx.env.observation import check_excluded
from collectx.env.spaces import leave_out, numpy_dtype
from collectx.env.torchrl import torchrl_envs
from collectx.errors import ConfigError, SpaceError


def below_transforms(env: Any) -> Any:
    """Returns the env below all `TransformedEnv`."""
    while isinstance(env, torchrl_envs().TransformedEnv):
        env = env.base_env
    return env


def has_started(env: Any) -> bool:
    """Whether an env is a `SerialEnv` or `ParallelEnv` that has started, with or without transforms."""
    base = below_transforms(env)
    return isinstance(base, torchrl_envs().SerialEnv | torchrl_envs().ParallelEnv) and not base.is_closed


def has_root_end(env: Any) -> bool:
    """Whether the env writes an end at the root. Otherwise each agent is reset when it ends."""
    return any(key in DONE_KEYS for key in _by_key(env.full_done_spec))


def read_spec(env: Any, exclude: Sequence[str]) -> EnvSpec:
    """Returns the spec of an env, batched or not. A single leaf with a plain key becomes a space of the matching kind,
    such as Box. Several leaves become a Dict with their keys; action keys lose their first part if all share it.
    `exclude` contains keys of the observation and state to omit, or their first parts; parts joined by dots. Raises
    `ConfigError` if an entry of `exclude` matches no key, or a transform changes frames after their step, or
    `SpaceError` if a leaf lacks a fixed shape or a dtype that NumPy has, a `done` key at the root is not `[1]`, or
    there is no reward."""
    observed, acted = _observation_specs(env, exclude), _by_key(env.full_action_spec)
    leaves, action = _leaves(observed, env), _leaves(acted, env)
    rewards = _leaves(_by_key(env.full_reward_spec), env)
    if not rewards:
        raise SpaceError(f"the specs of {type(env).__name__} declare no reward. Add one with a transform.")
    ends = _by_key(env.full_done_spec).keys() - DONE_KEYS
    agents_ends = tuple(
        leaf for leaf in leaves if leaf.key in ends and leaf.key[-1:] in DONE_KEYS and leaf.dtype is torch.bool
    )
    size = tuple(env.batch_size)
    inputs, observation_space = _inputs(env, leaves, agents_ends, dict_parts(env))
    return EnvSpec(
        env.batch_size.numel(),
        leaves,
        action,
        observation_space,
        _joint_space(acted, action, len(size), is_action=True),
        inputs=inputs,
        agents_ends=agents_ends,
        rewards=rewards,
        deltas=_deltas(env, leaves),
        batch_shape=size if len(size) > 1 else (),
        nested_dims=_nested_dims(env, (*leaves, *action, *rewards)),
        action_spec=env.full_action_spec,
    )


class RandomActions(Iterator[tuple[torch.Tensor, ...]]):
    """An iterator of random actions for `envs`, batched or not, drawn from their specs.

    A mask of legal actions (TorchRL's `ActionMask`) applies to one step, so a spec with a mask is sampled in every
    step; all others are sampled for many steps at once.
    """

    def __init__(self, envs: Sequence[Any], leaves: Sequence[Leaf]):
        self._envs = envs
        self._leaves = leaves
        # The actions of the coming steps, the next one last.
        self._left: list[tuple[torch.Tensor, ...]] = []

    def __next__(self) -> tuple[torch.Tensor, ...]:
        if not self._left:
            self._left = _steps(self._draw())
        return self._left.pop()

    def __getstate__(self) -> dict[str, Any]:
        # In a few large tensors, because a small one takes more bytes than its numbers.
        return vars(self) | {"_left": [torch.stack(steps[::-1]) for steps in zip(*self._left, strict=True)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _left=_steps(state["_left"]))

    def _draw(self) -> list[torch.Tensor]:
        specs, leaves = [env.full_action_spec for env in self._envs], self._leaves
        masked = any(getattr(spec[leaf.key], "mask", None) is not None for spec in specs for leaf in leaves)
        elements = sum(spec[leaf.key].shape.numel() for spec in specs for leaf in leaves)
        steps = 1 if masked else steps_per_draw(elements)
        drawn = [spec.rand(() if masked else (steps,)) for spec in specs]
        blocks = []
        for leaf in leaves:
            values = [each.get(leaf.key).cpu().reshape(steps, -1, *leaf.shape) for each in drawn]
            blocks.append(values[0] if len(values) == 1 else torch.cat(values, 1))
        return blocks


def _steps(blocks: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Returns the actions of all steps, the first one last, from a tensor `[steps, ...]` per leaf."""
    return list(zip(*(block.unbind(0) for block in blocks), strict=True))[::-1]


def with_inputs(spec: EnvSpec, env: Any, part: Any) -> EnvSpec:
    """Returns the spec of a batched env, with the policy inputs that follow from `part`, one of its envs."""
    inputs, observation_space = _inputs(env, spec.observation, spec.agents_ends, dict_parts(part))
    return replace(spec, inputs=inputs, observation_space=observation_space)


def gym_wrapper(env: Any) -> Any:
    """Returns the `GymWrapper` below an env (below the first env of a `SerialEnv` that has started), if it wraps a
    Gymnasium env, and resets and seeds it with TorchRL's methods; otherwise None."""
    env, envs = below_transforms(env), torchrl_envs()
    if isinstance(env, envs.SerialEnv) and not env.is_closed:
        env = below_transforms(env._envs[0])
    if not isinstance(env, envs.GymWrapper) or not isinstance(env._env, gymnasium.Env | VectorEnv):
        return None
    methods = (type(env)._set_seed, type(env)._reset)
    return env if all(method.__module__.startswith("torchrl.") for method in methods) else None


def dict_parts(env: Any) -> list[str]:
    """Returns the names of the parts of the Dict observation of the Gymnasium env below an unbatched env; empty without
    a Dict."""
    wrapper = gym_wrapper(env)
    space = None if wrapper is None else wrapper._env.observation_space
    return [*space.spaces] if isinstance(space, spaces.Dict) else []


def _inputs(
    env: Any, leaves: Sequence[Leaf], agents_ends: Sequence[Leaf], names: Sequence[str]
) -> tuple[tuple[Leaf, ...], Space]:
    """Returns `EnvSpec.inputs` and their space: the leaves below "observation" and `names`; without any, all leaves but
    the step count and the agents' ends."""
    seen = [leaf for leaf in leaves if leaf.key[0] in ("observation", *names)]
    seen = seen or [leaf for leaf in leaves if leaf.key != STEP_COUNT and leaf not in agents_ends]
    specs = _by_key(env.full_state_spec) | _by_key(env.full_observation_spec)
    return tuple(seen), _joint_space(specs, seen, len(env.batch_size))


def _by_key(composite: Any) -> dict[Key, Any]:
    return {as_key(key): spec for key, spec in composite.items(True, True)}


def _observation_specs(env: Any, exclude: Sequence[str]) -> dict[Key, Any]:
    """Returns the specs of the observation leaves, of the state leaves that are not observed, and of the agents'
    ends."""
    name = type(env).__name__
    observed = _by_key(env.full_observation_spec)
    observed |= {key: spec for key, spec in _by_key(env.full_state_spec).items() if key not in observed}
    prefixes = {key: [key[: end + 1] for end in range(len(key))] for key in observed}
    known = [prefix for each in prefixes.values() for prefix in each]
    check_excluded(exclude, known, f"the observations of {name}")
    observed = {key: spec for key, spec in observed.items() if set(exclude).isdisjoint(map(".".join, prefixes[key]))}
    ends = _by_key(env.full_done_spec)
    leaves = _leaves(ends, env)
    if any(leaf.shape != (1,) for leaf in leaves if leaf.key in DONE_KEYS):
        names = ", ".join(f"{'.'.join(leaf.key)} {list(leaf.shape)}" for leaf in leaves)
        raise SpaceError(
            f"{name} declares the done keys {names}, but done, terminated and truncated at the root must have shape "
            "[1]. Put those of several agents below the name of their group, such as agents.done."
        )
    return observed | {key: spec for key, spec in ends.items() if key not in DONE_KEYS}


def _nested_dims(env: Any, leaves: Sequence[Leaf]) -> dict[Key, tuple[int, ...]]:
    """Returns `EnvSpec.nested_dims`: the dimensions of the nested specs. For a key in several specs, the first one
    counts."""
    composites = (
        env.full_observation_spec,
        env.full_state_spec,
        env.full_action_spec,
        env.full_reward_spec,
        env.full_done_spec,
    )
    dims: dict[Key, tuple[int, ...]] = {}
    for composite in composites:
        for key, spec in composite.items(include_nested=True):
            if isinstance(spec, sys.modules["torchrl.data"].Composite):
                dims.setdefault(as_key(key), tuple(spec.shape[len(env.batch_size) :]))
    return {key: shape for key, shape in nested_dims(dims, leaves).items() if shape}


def _deltas(env: Any, observed: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Returns the leaves that TorchRL's `NextObservationDelta` writes below `next`, in place of observations, which its
    hook deletes. Raises `ConfigError` for other hooks, which may do anything."""
    by_key = {leaf.key: leaf for leaf in observed}
    deltas: dict[Key, Leaf] = {}
    for owner in _with_hooks(env):
        if not isinstance(owner, torchrl_envs().NextObservationDelta):
            raise ConfigError(
                f"{type(owner).__name__} cannot be used: its _post_step_mdp_hooks changes observations between steps, "
                "so a frame's 'next' would not match the following frame. Remove it, and change the batches instead, "
                "for example with postproc."
            )
        changing = [by_key[key] for key in map(as_key, owner.in_keys) if key in by_key]
        deltas |= {leaf.key: Leaf(("delta", *leaf.key), leaf.shape, owner.delta_dtype) for leaf in changing}
    for leaf in deltas.values():
        if not _is_storable(leaf):
            raise SpaceError(
                f"{'.'.join(leaf.key)!r} cannot be stored, because NumPy has no {leaf.dtype}. Use "
                "delta_dtype=torch.float16."
            )
    return tuple(deltas.values())


def _with_hooks(env: Any) -> Iterator[Any]:
    """Yields the env and its transforms that change frames by a hook of TorchRL's rollouts."""
    envs = torchrl_envs()
    if not isinstance(env, envs.TransformedEnv):
        if getattr(env, "_post_step_mdp_hooks", None) is not None:
            yield env
        return
    for transform in getattr(env.transform, "transforms", [env.transform]):
        # The hooks of the base classes change nothing.
        idle = envs.Transform._post_step_mdp_hooks, envs.Compose._post_step_mdp_hooks
        if type(transform)._post_step_mdp_hooks not in idle:
            yield transform
    yield from _with_hooks(env.base_env)


def _leaves(specs: dict[Key, Any], env: Any) -> tuple[Leaf, ...]:
    leaves = tuple(Leaf(key, tuple(spec.shape[len(env.batch_size) :]), spec.dtype) for key, spec in specs.items())
    for leaf in leaves:
        if not _is_storable(leaf):
            name, kind = ".".join(leaf.key), type(specs[leaf.key]).__name__
            is_fixed = min(leaf.shape, default=0) >= 0
            has = f"shape {leaf.shape}" if not is_fixed else f"dtype {leaf.dtype}" if leaf.dtype else "no dtype"
            raise SpaceError(
                f"{name!r} of {type(env).__name__} cannot be stored: its {kind} spec has {has}, but a batch only "
                "contains tensors with a fixed shape and a NumPy dtype. Transform it. If it is part of the "
                f"observation, you can also {leave_out(name)}."
            )
    return leaves


def _is_storable(leaf: Leaf) -> bool:
    try:
        numpy_dtype(leaf)
    except TypeError:
        return False
    # The dtype of a NonTensor spec is None.
    return leaf.dtype is not None and min(leaf.shape, default=0) >= 0


def _joint_space(specs: dict[Key, Any], leaves: Sequence[Leaf], num_batch_dims: int, is_action: bool = False) -> Space:
    by_key = {leaf.key: _space(specs[leaf.key], leaf, num_batch_dims) for leaf in leaves}
    if [len(key) for key in by_key] == [1]:
        return next(iter(by_key.values()))
    if is_action and len({key[0] for key in by_key}) == 1:
        by_key = {key[1:]: space for key, space in by_key.items()}
    return _dict_space(nest(by_key))


def _space(spec: Any, leaf: Leaf, num_batch_dims: int) -> Space:
    """Returns the space of a leaf; for one-hot leaves, which Gymnasium does not know, a bare `Space` with shape and
    dtype."""
    data, dtype = sys.modules["torchrl.data"], numpy_dtype(leaf)
    if isinstance(spec, data.Binary):
        return spaces.MultiBinary(leaf.shape)
    if isinstance(spec, data.MultiCategorical):
        return spaces.MultiDiscrete(np.asarray(spec.nvec.cpu())[(0,) * num_batch_dims], dtype.type)
    if isinstance(spec, data.Categorical) and is_integer(dtype):
        return spaces.Discrete(spec.n) if leaf.shape == () else spaces.MultiDiscrete(np.full(leaf.shape, spec.n), dtype)
    if isinstance(spec, data.Bounded | data.Unbounded) and is_numeric(dtype) and dtype != np.bool_:
        low, high = (np.asarray(bound.cpu())[(0,) * num_batch_dims] for bound in (spec.space.low, spec.space.high))
        return spaces.Box(low, high, leaf.shape, dtype.type)
    return Space(leaf.shape, dtype)


def choices_of(spec: Any, leaf: Leaf) -> tuple[np.ndarray, bool]:
    """Returns the number of values of each choice of an action, if any, and whether it is one-hot."""
    data = sys.modules["torchrl.data"]
    if isinstance(spec, data.MultiCategorical):
        return np.asarray(spec.nvec.cpu())[(0,) * (spec.ndim - len(leaf.shape))].reshape(-1), False
    if isinstance(spec, data.Categorical):
        return np.full(math.prod(leaf.shape), spec.n), False
    if isinstance(spec, data.MultiOneHot):
        return np.tile([box.n for box in spec.space], math.prod(leaf.shape[:-1])), True
    if isinstance(spec, data.OneHot):
        return np.full(math.prod(leaf.shape[:-1]), leaf.shape[-1]), True
    return np.zeros(0, np.int64), False


def _dict_space(parts: dict[str, Any]) -> spaces.Dict:
    return spaces.Dict({name: _dict_space(part) if isinstance(part, dict) else part for name, part in parts.items()})
