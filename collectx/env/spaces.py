"""Converts Gymnasium spaces to leaves of a batch, and nested values to and from those leaves.

Called by the env adapters, in the worker's process. Must not know envs, batches' memory or policies.

    space                                 leaves
    Box, MultiDiscrete, MultiBinary       one, with the space's shape and dtype
    Discrete                              one int64 of shape (); the value is the env's own, `start` included
    Dict, Tuple                           those of the parts, below the part's name, or "0", "1", ...
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from collectx.batch import Key, Leaf
from collectx.errors import ConfigError, ShapeError, SpaceError

Path = tuple[Any, ...]


class SpaceLeaves:
    """The leaves of a space, and the conversion of its nested values.

    Args:
        root: the key below which the leaves are; if the space is `single`, the key of its only leaf.

    Attributes:
        space: the space.
        leaves: its leaves, in the order that every method uses.
        single: whether the space is neither a Dict nor a Tuple, so that its value is that of its only leaf.

    Raises:
        SpaceError: a part of the space has no fixed shape and numeric dtype.
    """

    def __init__(self, space: Space, root: Key):
        self.space = space
        parts = list(_walk(space, root, ()))
        if not parts:
            raise SpaceError(f"{'.'.join(root)}: {space} is empty, so there is nothing to store: give it a Box")
        self.leaves = tuple(leaf for leaf, _ in parts)
        self._paths = tuple(path for _, path in parts)
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

        The values are Python integers for Discrete, otherwise views of one copy, so that an env may keep or change
        them.
        """
        if not self.single:
            return self._split_nested
        return partial(_split, self.space)

    def _split_nested(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        parts = _part_spaces(self.space)
        columns = [_split(part, array) for part, array in zip(parts, map(_only, arrays), strict=True)]
        return [self.nest(row) for row in zip(*columns, strict=True)]


def exclude_parts(space: Space, names: Sequence[str]) -> Space:
    """`space` without some of its parts. In a Tuple an empty Dict replaces a part, so that the others keep their index.

    Args:
        names: paths of the parts, joined by dots: `mission`, `inner.text`.

    Raises:
        ConfigError: no part has one of the names.
    """
    if not names:
        return space
    known: list[str] = []
    reduced = _exclude_parts(space, "", frozenset(names), known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            [
                f"env.exclude_keys names {', '.join(unknown)}, which the observation does not have: it has "
                f"{', '.join(known) or 'no parts'}."
            ]
        )
    return reduced


def _exclude_parts(space: Space, prefix: str, names: frozenset[str], known: list[str]) -> Space:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return space
    items: Iterable[tuple[Any, Space]]
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    parts: dict[Any, Space] = OrderedDict()
    for name, part in items:
        path = f"{prefix}{name}"
        known.append(path)
        if path not in names:
            parts[name] = _exclude_parts(part, f"{path}.", names, known)
        elif isinstance(space, spaces.Tuple):
            parts[name] = spaces.Dict({})
    return spaces.Dict(parts) if isinstance(space, spaces.Dict) else spaces.Tuple(parts.values())


def write_row(leaves: Sequence[Leaf], rows: Sequence[np.ndarray], e: int, values: Sequence[Any]) -> None:
    """Copies one env's leaf values into row `e` of each of `rows`, after checking their shape and dtype.

    Raises:
        ShapeError: names the leaf, its shape and dtype, and those of the value.
    """
    for leaf, array, value in zip(leaves, rows, values, strict=True):
        if type(value) is not np.ndarray or value.shape != leaf.shape or value.dtype is not array.dtype:
            check(leaf, value, array.dtype, e)
        array[e] = value


def checked_rows(leaf: Leaf, values: Any, array: np.ndarray) -> np.ndarray:
    """The values of a group's envs as an array that can be assigned to `array` without changing a value.

    Called in every step; it costs two comparisons where shape and dtype are those of `array`.

    Args:
        values: an array `[E, *shape]`, or a sequence of one value for each env. The result may share its memory.
        array: `[E, *shape]`; not written.

    Raises:
        ShapeError: names the leaf, the first env whose value does not fit, and both shapes and dtypes.
    """
    try:
        rows = np.asarray(values)
        if rows.shape == array.shape and (rows.dtype is array.dtype or _fits(rows, array.dtype)):
            return rows
    except ValueError:
        pass  # of unequal shapes
    items = list(values) if np.iterable(values) else []
    if len(items) != len(array):
        raise ShapeError(
            f"{'.'.join(leaf.key)}: expected {len(array)} values, one for each env, of shape {leaf.shape}, got "
            f"{len(items) or type(values).__name__}: the vector env must return what its space says"
        )
    rows = np.empty(array.shape, array.dtype)
    for e, value in enumerate(items):
        check(leaf, value, array.dtype, e)
        rows[e] = value
    return rows


def check(leaf: Leaf, value: Any, dtype: np.dtype, e: int | None = None) -> None:
    """Raises ShapeError where `value` does not have the leaf's shape, or `dtype` cannot represent it.

    Floats may lose precision. Integers must be in the range of an integer `dtype`, whatever their type; floats are not
    converted to integers.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise _misfit(leaf, f"{type(value).__name__} of uneven shape", e) from None
    if array.shape != leaf.shape or not _fits(array, dtype):
        got = f"shape {array.shape}, dtype {array.dtype}"
        if array.shape == leaf.shape and array.dtype.kind in "iu" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            got += f" with values from {array.min()} to {array.max()}, where {limits.min} to {limits.max} are possible"
        raise _misfit(leaf, got, e)


def _misfit(leaf: Leaf, got: str, e: int | None) -> ShapeError:
    where = "" if e is None else f" from env {e} of the group"
    dtype = str(leaf.dtype).removeprefix("torch.")
    return ShapeError(
        f"{'.'.join(leaf.key)}: expected shape {leaf.shape}, dtype {dtype}, got {got}{where}: "
        "the env must return what its space says"
    )


def _fits(values: np.ndarray, dtype: np.dtype) -> bool:
    """Whether `dtype` can represent `values`; see `check`."""
    fits = _dtype_fits(values.dtype, dtype)
    return np.array_equal(values.astype(dtype), values) if fits is None else fits


@lru_cache(maxsize=256)
def _dtype_fits(source: np.dtype, stored: np.dtype) -> bool | None:
    """Whether `stored` can represent values of dtype `source`; None where that depends on the values."""
    if source.kind in "iu" and stored.kind in "iu" and not np.can_cast(source, stored):
        return None
    return np.can_cast(source, stored, "same_kind")


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
        + (f", or {leave_out('.'.join(key[1:]))}" if key[0] == "observation" and len(key) > 1 else "")
    )


def leave_out(name: str) -> str:
    """The advice to omit a part of the observation."""
    return f"leave it out with env.exclude_keys=[{name}], in Python exclude_keys=['{name}']"


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
