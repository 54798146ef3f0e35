"""Converts Gymnasium's observations to leaves of a batch, with the keys of TorchRL's `GymWrapper`.

observation space     keys
Dict                  the keys of its parts, at the root: `("camera",)`, `("pose", "arm")`; a part "state" is
                      `("observation",)` if there is no part "observation"
Tuple of equal parts  one, for the stacked parts: `("observation",)`, or the Tuple's key in a Dict
any other Tuple       below the Tuple's key: `("observation", "0")`, `("observation", "1")`, ...
any other space       `("observation",)`
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from collectx.batch import DONE_KEYS, REWARD, TRAJ_IDS, clashes
from collectx.config.problem import Problem
from collectx.env.spaces import Path, SpaceLeaves, leave_out, parts_of
from collectx.errors import ConfigError, SpaceError

# Keys that every batch contains, so that no part of an observation can have them.
_TAKEN = ("action", *REWARD.key, "next", TRAJ_IDS[0], *(name for (name,) in DONE_KEYS))
_STATE, _OBSERVATION = "state", "observation"
# The part, or the entry of `info`, that is a mask of legal actions (`collectx.env.action_masks`).
ACTION_MASK = "action_mask"


class ObservationLeaves(SpaceLeaves):
    """The leaves of an observation space; see the module's docstring. `space` is the space with the keys of the leaves,
    without the omitted parts.

    Args:
        exclude: names of parts to omit; see `exclude_parts`.
        info_keys: the kept entries of `info`, which batches contain below "info".

    Raises:
        ConfigError: a name in `exclude` matches no part.
        SpaceError: a part lacks a fixed shape and numeric dtype, or its name is a key that every batch contains.
    """

    def __init__(self, space: Space, exclude: Sequence[str] = (), info_keys: Sequence[Any] = ()):
        space = exclude_parts(space, exclude)
        names = [*space.spaces] if isinstance(space, spaces.Dict) else []
        _check_names(names, (*_TAKEN, "info") if info_keys else _TAKEN)
        root = () if isinstance(space, spaces.Dict) else (_OBSERVATION,)
        super().__init__(_stacked(space), root, may_be_empty=bool(exclude))
        self._tuples = [i for i, path in enumerate(self._paths) if isinstance(_part(space, path), spaces.Tuple)]
        if self._tuples:
            self.single = False
            self.flatten = self._flatten_with_tuples  # type: ignore[method-assign]
        if isinstance(self.space, spaces.Dict) and _STATE in names and _OBSERVATION not in names:
            self.leaves = tuple(
                replace(leaf, key=(_OBSERVATION, *leaf.key[1:])) if leaf.key[0] == _STATE else leaf
                for leaf in self.leaves
            )
            parts = ((_OBSERVATION if name == _STATE else name, part) for name, part in parts_of(self.space))
            self.space = spaces.Dict(OrderedDict(parts))

    def _flatten_with_tuples(self, value: Any) -> list[Any]:
        flat = self._flatten_with_texts(value) if self.has_text else super().flatten(value)
        for i in self._tuples:
            # Values of unequal shapes: the check of all values reports them.
            with contextlib.suppress(ValueError):
                flat[i] = _stack(flat[i], self.leaves[i].shape)
        return flat


def _check_names(names: Sequence[Any], taken: Sequence[str]) -> None:
    """Raises SpaceError if the name of a part of a Dict observation is taken."""
    if colliding := [str(name) for name in names if str(name) in taken]:
        is_one = len(colliding) == 1
        parts, reserved, them = ("a part", "this name", "it") if is_one else ("parts", "these names", "them")
        raise SpaceError(
            f"a Dict observation cannot have {parts} named {' or '.join(map(repr, colliding))}, because batches "
            f"reserve {reserved}. Rename {them} (gymnasium.wrappers.TransformObservation), or "
            f"{leave_out(*colliding)}."
        )


def _stacked(space: Space) -> Space:
    """Returns `space` with one space in place of each Tuple of equal parts."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((name, _stacked(part)) for name, part in parts_of(space)))
    if not isinstance(space, spaces.Tuple):
        return space
    parts = [_stacked(part) for part in space.spaces]
    first, size = parts[0] if parts else None, len(parts)
    if any(part != first for part in parts):
        return spaces.Tuple(parts)
    if isinstance(first, spaces.Box):
        return spaces.Box(np.stack([first.low] * size), np.stack([first.high] * size), dtype=first.dtype.type)
    if isinstance(first, spaces.MultiBinary):
        return spaces.MultiBinary((size, *first.shape))
    if isinstance(first, spaces.Discrete):
        return spaces.MultiDiscrete([first.n] * size, np.int64, start=[first.start] * size)
    if isinstance(first, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(
            np.stack([first.nvec] * size), first.dtype.type, start=np.stack([first.start] * size)
        )
    return spaces.Tuple(parts)


def _stack(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the stacked values of a Tuple of one env, `shape`, or of a batched one, `[E, *shape]`."""
    parts = [_stack(part, shape[1:]) if isinstance(part, tuple) else part for part in value]
    return np.stack(parts, axis=-len(shape))


def _part(space: Space, path: Path) -> Space:
    for name in path:
        space = space[name]  # type: ignore[index]
    return space


def exclude_parts(space: Space, names: Sequence[str]) -> Space:
    """Returns `space` without some of its parts. In a Tuple, an empty Dict replaces a part, so that the others keep
    their indices. An empty Dict also replaces a space without any part left. `names` are paths of the parts, joined by
    dots, such as `mission` or `inner.text`; "observation" for a space that is not a Dict."""
    if not names:
        return space
    known: list[Path] = [] if isinstance(space, spaces.Dict) else [(_OBSERVATION,)]
    is_empty = _OBSERVATION in names and known
    reduced = spaces.Dict({}) if is_empty else _exclude_parts(space, (), frozenset(names), known)
    check_excluded(names, known, "the observation")
    return reduced


def check_excluded(names: Sequence[str], known: Sequence[Path], where: str) -> None:
    """Raises ConfigError if a name in `env.exclude_keys` matches no part in `known`, or several. `where` says what has
    the parts."""
    paths = {path: ".".join(map(str, path)) for path in known}
    # The mask of legal actions may be in the infos instead.
    if unknown := [name for name in names if name not in paths.values() and name != ACTION_MASK]:
        are = "which is" if len(unknown) == 1 else "which are"
        rule = f"cannot contain {' and '.join(map(repr, unknown))}, {are} not in {where}. Valid names: "
        raise ConfigError(Problem("env.exclude_keys", f"{rule}{', '.join(paths.values()) or 'none'}."))
    several = clashes((name, path) for path, name in paths.items())
    if ambiguous := [
        f"{name!r}, which names both {' and '.join(map(str, several[name]))}" for name in names if name in several
    ]:
        advice = (
            "exclude a part that contains only one of them, or rename one (gymnasium.wrappers.TransformObservation)."
        )
        raise ConfigError(Problem("env.exclude_keys", f"cannot contain {', '.join(ambiguous)}", advice=advice))


def _exclude_parts(space: Space, path: Path, names: frozenset[str], known: list[Path]) -> Space:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return space
    parts: dict[Any, Space] = OrderedDict()
    for name, part in parts_of(space):
        inner = (*path, name)
        known.append(inner)
        if ".".join(map(str, inner)) not in names:
            parts[name] = _exclude_parts(part, inner, names, known)
        elif isinstance(space, spaces.Tuple):
            parts[name] = spaces.Dict({})
    return spaces.Dict(parts) if isinstance(space, spaces.Dict) else spaces.Tuple(parts.values())
