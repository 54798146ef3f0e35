"""Gymnasium spaces as leaves of a batch, and nested values to and from those leaves.

Called by the env adapters, in the worker's process. Must not know envs, batches' memory or policies.

    space                                 leaves
    Box, MultiDiscrete, MultiBinary       one, with the space's shape and dtype
    Discrete                              one int64 of shape (); the value is the env's own, `start` included
    Dict, Tuple                           those of the parts, below the part's name, or "0", "1", ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from collectx.batch import Key, Leaf
from collectx.errors import ShapeError, SpaceError

Path = tuple[Any, ...]


class Structure:
    """How one space's nested values lie in leaves.

    Attributes:
        space: the space.
        leaves: its leaves, in a fixed order that every method here follows.
        single: whether a value of the space is itself the value of the only leaf.

    Raises:
        SpaceError: the space holds something without a fixed shape and numeric dtype.
    """

    def __init__(self, space: Space, root: Key):
        self.space = space
        found = list(_walk(space, root, ()))
        if not found:
            raise SpaceError(f"{'.'.join(root)}: {space} is empty, so there is nothing to store: give it a Box")
        self.leaves = tuple(leaf for leaf, _ in found)
        self._paths = tuple(path for _, path in found)
        self.single = self._paths == ((),)
        _refuse_clashes(self.leaves, space)

    def flatten(self, value: Any) -> list[Any]:
        """The leaf values of one nested value, or of one batched nested value; nothing is copied.

        Raises:
            ShapeError: a part of the value is missing.
        """
        if self.single:
            return [value]
        flat = []
        for leaf, path in zip(self.leaves, self._paths, strict=True):
            part = value
            try:
                for step in path:
                    part = part[step]
            except (KeyError, IndexError, TypeError) as error:
                raise ShapeError(f"{'.'.join(leaf.key)}: missing from the value, which is {value!r:.200}") from error
            flat.append(part)
        return flat

    def nest(self, values: Sequence[Any]) -> Any:
        """The nested value that Gymnasium expects, from one value per leaf; nothing is copied."""
        return values[0] if self.single else _nest(self.space, iter(values))

    def element_splitter(self) -> Callable[[Sequence[np.ndarray]], list[Any]]:
        """A function from batched leaf arrays `[E, *shape]` to a list of E nested values.

        The values are Python integers for Discrete, otherwise views of one fresh copy: an env may keep or change
        them, while the arrays passed in belong to the caller and are written again.
        """
        if not self.single:
            return self._split_nested
        return partial(_split, self.space)

    def _split_nested(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        parts = _part_spaces(self.space)
        columns = [_split(part, array) for part, array in zip(parts, map(_only, arrays), strict=True)]
        return [self.nest(row) for row in zip(*columns, strict=True)]


def write_row(leaves: Sequence[Leaf], rows: Sequence[np.ndarray], e: int, values: Sequence[Any]) -> None:
    """Copies one env's leaf values into row `e` of each of `rows`, after checking their shape and dtype.

    Raises:
        ShapeError: names the leaf, what its space allows and what came.
    """
    for leaf, array, value in zip(leaves, rows, values, strict=True):
        check(leaf, value, array.dtype, e)
        array[e] = value


def check(leaf: Leaf, value: Any, dtype: np.dtype, e: int | None = None) -> None:
    """Raises ShapeError where `value` is not of the leaf's shape, or its dtype cannot be stored as `dtype`."""
    if type(value) is np.ndarray and value.shape == leaf.shape and value.dtype == dtype:
        return
    try:
        array = np.asarray(value)
    except ValueError:
        raise misfit(leaf, value, e) from None
    # An integer space may well be filled from Python ints or a wider integer type: only the kind matters.
    stores = np.can_cast(array.dtype, dtype, "same_kind") or (array.dtype.kind in "iu" and dtype.kind in "iu")
    if array.shape != leaf.shape or not stores:
        raise misfit(leaf, value, e)


def misfit(leaf: Leaf, value: Any, e: int | None = None) -> ShapeError:
    """The error for a value that does not fit its leaf."""
    try:
        array = np.asarray(value)
        got = f"shape {array.shape}, dtype {array.dtype}"
    except ValueError:
        got = f"{type(value).__name__} of uneven shape"
    where = "" if e is None else f" from env {e} of the group"
    return ShapeError(
        f"{'.'.join(leaf.key)}: expected shape {leaf.shape}, dtype {str(leaf.dtype).removeprefix('torch.')}, got {got}"
        f"{where}: the env must return what its space says"
    )


def numpy_dtype(leaf: Leaf) -> np.dtype:
    """The leaf's dtype in numpy."""
    return torch.empty(0, dtype=leaf.dtype).numpy().dtype


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The torch dtype of the same name. Raises TypeError where there is none."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _walk(space: Space, key: Key, path: Path) -> Iterator[tuple[Leaf, Path]]:
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _walk(part, (*key, str(name)), (*path, name))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _walk(part, (*key, str(index)), (*path, index))
    elif isinstance(space, spaces.Discrete):
        yield Leaf(key, (), torch.int64), path
    elif isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        try:
            dtype = torch_dtype(np.dtype(space.dtype))
        except TypeError as error:
            raise _unstorable(space, key, f"torch has no dtype {space.dtype}") from error
        yield Leaf(key, tuple(int(n) for n in space.shape), dtype), path
    else:
        raise _unstorable(space, key, "it has no fixed shape and dtype")


def _unstorable(space: Space, key: Key, why: str) -> SpaceError:
    return SpaceError(
        f"{'.'.join(key)}: the space {space} cannot be stored as a tensor, as {why}: turn it into a Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of these, as gymnasium.wrappers.TransformObservation does"
    )


def _refuse_clashes(leaves: Sequence[Leaf], space: Space) -> None:
    keys = {leaf.key for leaf in leaves}
    if len(keys) < len(leaves):
        raise SpaceError(f"two parts of {space} have the same name as text: rename one")


def _nest(space: Space, values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _nest(part, values) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(part, values) for part in space.spaces)
    return next(values)


def _part_spaces(space: Space) -> list[Space]:
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _part_spaces(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in _part_spaces(part)]
    return [space]


def _only(array: np.ndarray) -> Sequence[np.ndarray]:
    return (array,)


def _split(space: Space, arrays: Sequence[np.ndarray]) -> list[Any]:
    array = arrays[0]
    if isinstance(space, spaces.Discrete):
        return array.tolist()
    copy = array.copy()
    if copy.ndim > 1:
        return list(copy)
    # Iterating would give scalars, which a Box of shape () does not contain.
    return [copy[e, ...] for e in range(len(copy))]
