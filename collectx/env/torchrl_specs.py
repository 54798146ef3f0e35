"""Converts TorchRL's specs to leaves of a batch and to Gymnasium spaces, and draws random actions from them. torchrl
itself is not imported: its objects are recognised by the names of their classes.

Called by the adapter of TorchRL's envs, in the worker's process. Must not know how envs are stepped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from collectx.batch import DONE_KEYS, Key, Leaf, as_key, nest
from collectx.env.base import steps_per_draw
from collectx.env.spaces import leave_out, numpy_dtype
from collectx.errors import ConfigError, SpaceError


def is_torchrl_env(value: Any) -> bool:
    """Whether `value` is one of TorchRL's envs (an `EnvBase`)."""
    return any(cls.__name__ == "EnvBase" and cls.__module__.startswith("torchrl.") for cls in type(value).__mro__)


def observation_specs(env: Any, exclude: Sequence[str] = ()) -> dict[Key, Any]:
    """The specs of the env's observation leaves, then those of its state that are not observed.

    Args:
        exclude: keys to omit, or their first parts; parts joined by dots.

    Raises:
        ConfigError: no key begins with one of `exclude`.
        SpaceError: the shape of a root end is not `[1]`.
    """
    observed = _by_key(env.full_observation_spec)
    observed |= {key: spec for key, spec in _by_key(env.full_state_spec).items() if key not in observed}
    prefixes = {key: {".".join(key[: end + 1]) for end in range(len(key))} for key in observed}
    if unknown := sorted(set(exclude).difference(*prefixes.values())):
        raise ConfigError(
            [
                f"env.exclude_keys names {', '.join(unknown)}, which {type(env).__name__} does not observe: it has "
                f"{', '.join(map('.'.join, observed))}."
            ]
        )
    observed = {key: spec for key, spec in observed.items() if prefixes[key].isdisjoint(exclude)}
    return observed | _agents_ends(env)


def reward_leaves(env: Any) -> tuple[Leaf, ...]:
    """The leaves of one env's rewards.

    Raises:
        SpaceError: the env has no reward.
    """
    rewards = leaves_of(_by_key(env.full_reward_spec), env)
    if not rewards:
        raise SpaceError(f"{type(env).__name__} gives no reward: add one with a transform")
    return rewards


def action_specs(env: Any) -> dict[Key, Any]:
    """The specs of the leaves of an action."""
    return _by_key(env.full_action_spec)


def leaves_of(specs: dict[Key, Any], env: Any) -> tuple[Leaf, ...]:
    """One env's leaves.

    Raises:
        SpaceError: a leaf without a fixed shape and a dtype that numpy has.
    """
    leaves = tuple(Leaf(key, tuple(spec.shape[len(env.batch_size) :]), spec.dtype) for key, spec in specs.items())
    for leaf in leaves:
        if not _is_storable(leaf):
            raise SpaceError(
                f"{'.'.join(leaf.key)}: the spec {type(specs[leaf.key]).__name__} of {type(env).__name__} has shape "
                f"{leaf.shape} and dtype {leaf.dtype}: a batch holds tensors of a fixed shape and a dtype that numpy "
                f"has: transform it, or, if it is observed, {leave_out('.'.join(leaf.key))}"
            )
    return leaves


def space_of(specs: dict[Key, Any], leaves: Sequence[Leaf], num_batch_dims: int) -> Space:
    """The Gymnasium space of one env's leaves: that of the leaf where there is only one with a plain key, otherwise a
    Dict, without the first part of the keys where all share it. One-hot leaves have no counterpart: their space is a
    bare `Space` with shape and dtype."""
    by_key = {leaf.key: _space(specs[leaf.key], leaf, num_batch_dims) for leaf in leaves}
    if len({key[0] for key in by_key}) == 1:
        by_key = {key[1:]: space for key, space in by_key.items()}
    return by_key[()] if () in by_key else _dict_space(nest(by_key))


def random_actions(envs: Sequence[Any], leaves: Sequence[Leaf]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless random actions of `envs`, batched or not, from torch's generator: one `[E, *shape]` tensor per leaf.

    A mask of legal actions (TorchRL's `ActionMask`) holds for one step: a spec with a mask is sampled in every step,
    all others for many steps at once.
    """
    while True:
        specs = [env.full_action_spec for env in envs]
        masked = any(getattr(spec[leaf.key], "mask", None) is not None for spec in specs for leaf in leaves)
        elements = sum(spec[leaf.key].shape.numel() for spec in specs for leaf in leaves)
        steps = 1 if masked else steps_per_draw(elements)
        drawn = [spec.rand(() if masked else (steps,)) for spec in specs]
        blocks = []
        for leaf in leaves:
            rows = [values.get(leaf.key).cpu().reshape(steps, -1, *leaf.shape) for values in drawn]
            blocks.append(rows[0] if len(rows) == 1 else torch.cat(rows, 1))
        yield from zip(*(block.unbind(0) for block in blocks), strict=True)


def _by_key(composite: Any) -> dict[Key, Any]:
    return {as_key(key): spec for key, spec in composite.items(True, True)}


def _is_storable(leaf: Leaf) -> bool:
    # The dtype of a NonTensor spec is None.
    if not isinstance(leaf.dtype, torch.dtype):
        return False
    try:
        numpy_dtype(leaf)
    except TypeError:
        return False
    return min(leaf.shape, default=0) >= 0


def has_root_end(env: Any) -> bool:
    """Whether the env has a root end. Otherwise only its agents have ends, and each agent is reset when it ends."""
    return any(key in DONE_KEYS for key in _by_key(env.full_done_spec))


def _agents_ends(env: Any) -> dict[Key, Any]:
    """The specs of the agents' ends, which are observed."""
    specs = _by_key(env.full_done_spec)
    ends = leaves_of(specs, env)
    if any(leaf.shape != (1,) for leaf in ends if leaf.key in DONE_KEYS):
        names = ", ".join(f"{'.'.join(leaf.key)} {list(leaf.shape)}" for leaf in ends)
        raise SpaceError(
            f"{type(env).__name__} gives the ends {names}: done, terminated and truncated at the root are each [1]: "
            "give the ends of several agents below the name of their group, as agents.done"
        )
    return {key: spec for key, spec in specs.items() if key not in DONE_KEYS}


def _space(spec: Any, leaf: Leaf, num_batch_dims: int) -> Space:
    names = {cls.__name__ for cls in type(spec).__mro__}
    dtype = numpy_dtype(leaf)
    if "Binary" in names:
        return spaces.MultiBinary(leaf.shape)
    if "MultiCategorical" in names:
        return spaces.MultiDiscrete(np.asarray(spec.nvec.cpu())[(0,) * num_batch_dims], dtype.type)
    if "Categorical" in names and dtype.kind in "iu":
        return spaces.Discrete(spec.n) if leaf.shape == () else spaces.MultiDiscrete(np.full(leaf.shape, spec.n), dtype)
    if names & {"Bounded", "Unbounded"} and dtype.kind in "iuf":
        low, high = (np.asarray(bound.cpu())[(0,) * num_batch_dims] for bound in (spec.space.low, spec.space.high))
        return spaces.Box(low, high, leaf.shape, dtype.type)
    return Space(leaf.shape, dtype)


def _dict_space(parts: dict[str, Any]) -> spaces.Dict:
    return spaces.Dict({name: _dict_space(part) if isinstance(part, dict) else part for name, part in parts.items()})
