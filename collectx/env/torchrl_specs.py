"""TorchRL's specs as leaves of a batch, as Gymnasium spaces, and as random actions. torchrl itself is not imported: its
objects are known by the names of their classes.

Called by the adapter of TorchRL's envs, in the worker's process. Must not know how envs are stepped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from collectx.batch import DONE_KEYS, Key, Leaf, as_key
from collectx.env.spaces import leave_out, numpy_dtype
from collectx.errors import ConfigError, SpaceError

# Steps drawn at once, unless actions are large.
_BLOCK_STEPS = 256
_BLOCK_ELEMENTS = 65536


def is_torchrl_env(value: Any) -> bool:
    """Whether `value` is one of TorchRL's envs (an `EnvBase`)."""
    return any(cls.__name__ == "EnvBase" and cls.__module__.startswith("torchrl.") for cls in type(value).__mro__)


def observation_specs(env: Any, exclude: Sequence[str] = ()) -> dict[Key, Any]:
    """The specs of the leaves that `env` observes, in its order, then of those of its state that are not observed.

    Args:
        exclude: keys that are left out, or what all keys to leave out begin with; parts joined by dots.

    Raises:
        ConfigError: no key begins with one of `exclude`.
        SpaceError: the env as a whole has an end of another shape than a batch's.
    """
    observed = _by_key(env.full_observation_spec)
    observed |= {key: spec for key, spec in _by_key(env.full_state_spec).items() if key not in observed}
    beginnings = {key: {".".join(key[: end + 1]) for end in range(len(key))} for key in observed}
    if unknown := sorted(set(exclude).difference(*beginnings.values())):
        raise ConfigError(
            [
                f"env.exclude_keys names {', '.join(unknown)}, which {type(env).__name__} does not observe: it has "
                f"{', '.join(map('.'.join, observed))}."
            ]
        )
    observed = {key: spec for key, spec in observed.items() if beginnings[key].isdisjoint(exclude)}
    return observed | _agents_ends(env)


def reward_leaves(env: Any) -> tuple[Leaf, ...]:
    """What a step of one env gives.

    Raises:
        SpaceError: nothing.
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
    found = tuple(Leaf(key, tuple(spec.shape[len(env.batch_size) :]), spec.dtype) for key, spec in specs.items())
    for leaf in found:
        if not _is_storable(leaf):
            raise SpaceError(
                f"{'.'.join(leaf.key)}: the spec {type(specs[leaf.key]).__name__} of {type(env).__name__} has shape "
                f"{leaf.shape} and dtype {leaf.dtype}: a batch holds tensors of a fixed shape and a dtype that numpy "
                f"has: transform it, or, if it is observed, {leave_out('.'.join(leaf.key))}"
            )
    return found


def space_of(specs: dict[Key, Any], leaves: Sequence[Leaf], num_batch_dims: int) -> Space:
    """The Gymnasium space of one env's leaves: the leaf's own where there is one of a plain key, otherwise a Dict,
    below the first part of the keys where they share it. One-hot leaves have no counterpart: theirs is a bare `Space`
    with shape and dtype."""
    found = {leaf.key: _space(specs[leaf.key], leaf, num_batch_dims) for leaf in leaves}
    if len({key[0] for key in found}) == 1:
        found = {key[1:]: space for key, space in found.items()}
    return found[()] if () in found else _nested(found)


def draws(envs: Sequence[Any], leaves: Sequence[Leaf]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless random actions from torch's generator: one `[E, *shape]` tensor per leaf, of the envs of `envs`, each of
    them one env or several, one after another.

    As a mask of legal actions (TorchRL's `ActionMask`) belongs to one step, a spec with one is asked in every step; all
    others for many steps at once.
    """
    while True:
        specs = [env.full_action_spec for env in envs]
        masked = any(getattr(spec[leaf.key], "mask", None) is not None for spec in specs for leaf in leaves)
        elements = sum(spec[leaf.key].shape.numel() for spec in specs for leaf in leaves)
        steps = 1 if masked else max(1, min(_BLOCK_STEPS, _BLOCK_ELEMENTS // max(1, elements)))
        drawn = [spec.rand(() if masked else (steps,)) for spec in specs]
        blocks = []
        for leaf in leaves:
            rows = [values.get(leaf.key).cpu().reshape(steps, -1, *leaf.shape) for values in drawn]
            blocks.append(rows[0] if len(rows) == 1 else torch.cat(rows, 1))
        yield from zip(*(block.unbind(0) for block in blocks), strict=True)


def _by_key(composite: Any) -> dict[Key, Any]:
    return {as_key(key): spec for key, spec in composite.items(True, True)}


def _is_storable(leaf: Leaf) -> bool:
    # That of a NonTensor spec is None.
    if not isinstance(leaf.dtype, torch.dtype):
        return False
    try:
        numpy_dtype(leaf)
    except TypeError:
        return False
    return min(leaf.shape, default=0) >= 0


def has_root_end(env: Any) -> bool:
    """Whether the env as a whole has an end. Otherwise its groups of agents have, and each is reset when it ends."""
    return any(key in DONE_KEYS for key in _by_key(env.full_done_spec))


def _agents_ends(env: Any) -> dict[Key, Any]:
    """The specs of the ends of groups of agents, which are observed."""
    specs = _by_key(env.full_done_spec)
    ends = leaves_of(specs, env)
    if any(leaf.shape != (1,) for leaf in ends if leaf.key in DONE_KEYS):
        told = ", ".join(f"{'.'.join(leaf.key)} {list(leaf.shape)}" for leaf in ends)
        raise SpaceError(
            f"{type(env).__name__} gives the ends {told}: done, terminated and truncated at the root are each [1]: "
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


def _nested(found: dict[Key, Space]) -> spaces.Dict:
    parts: dict[str, Any] = {}
    for name in dict.fromkeys(key[0] for key in found):
        below = {key[1:]: space for key, space in found.items() if key[0] == name}
        parts[name] = below[()] if () in below else _nested(below)
    return spaces.Dict(parts)
