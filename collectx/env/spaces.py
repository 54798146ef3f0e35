"""Converts Gymnasium spaces to leaves of a batch, and nested values to and from leaf values.

space                                 leaves
Box, MultiDiscrete, MultiBinary       one, with the space's shape and dtype
Discrete                              one int64 of shape (); the env's value, `start` included
Text, in observations                 one int32 of shape (max_length,): Unicode code points, zeros after the end
Dict, Tuple                           the leaves of the parts, below the part's name, or "0", "1", ...

Observations have further rules for keys: `collectx/env/observation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from collectx.batch import Key, Leaf, is_integer
from collectx.config.problem import counted, opt
from collectx.errors import DataError, SpaceError

Path = tuple[Any, ...]


class Leaves:
    """Leaves, and the path of each in a nested value. `single`: the value itself is that of the only leaf."""

    def __init__(self, parts: Iterable[tuple[Leaf, Path]]):
        self.leaves, self._paths = tuple(zip(*parts, strict=True)) or ((), ())
        self.single = self._paths == ((),)

    def flatten(self, value: Any) -> list[Any]:
        """Returns the values of the leaves in a nested value, batched or not. Copies nothing. Raises `DataError` if a
        part of the value is missing."""
        if self.single:
            return [value]
        flat = []
        for leaf, path in zip(self.leaves, self._paths, strict=True):
            part = value
            try:
                for step in path:
                    part = part[step]
            except (KeyError, IndexError, TypeError) as error:
                if isinstance(path[0], str) and not isinstance(value, Mapping):
                    names = ", ".join(dict.fromkeys(str(each[0]) for each in self._paths))
                    raise DataError(f"the observation must be a dict with {names}, but is {value!r:.200}.") from error
                raise DataError(
                    f"the observation lacks {'.'.join(leaf.key)!r}, a part of its space: {value!r:.200}. Include all "
                    "parts, or remove this one from the space."
                ) from error
            flat.append(part)
        return flat


class SpaceLeaves(Leaves):
    """The leaves of a space; converts its nested values to and from leaf values. `has_text` says whether the space
    contains a Text. Raises `SpaceError` if a part of the space lacks a fixed shape and numeric dtype. `root` is the key
    above all leaves; if the space is neither a Dict nor a Tuple, the key of its only leaf. `may_be_empty` says whether
    a space without leaves is allowed."""

    def __init__(self, space: Space, root: Key, may_be_empty: bool = False):
        self.space = space
        parts = list(_walk(space, root, ()))
        if not parts and not may_be_empty:
            raise SpaceError(
                f"{'.'.join(root) or 'observation'!r} has the empty space {space}, so there is nothing to store. Add "
                "at least one part, such as a Box."
            )
        super().__init__((leaf, path) for leaf, path, _ in parts)
        self._part_spaces = [part for *_, part in parts]
        self._texts = [
            (i, part.max_length) for i, part in enumerate(self._part_spaces) if isinstance(part, spaces.Text)
        ]
        self.has_text = bool(self._texts)
        if self.has_text:
            self.flatten = self._flatten_with_texts  # type: ignore[method-assign]
        if len({leaf.key for leaf in self.leaves}) < len(parts):
            raise SpaceError(f"two parts of {space} get the same key in batches, as 0 and '0' would. Rename one.")

    def _flatten_with_texts(self, value: Any) -> list[Any]:
        flat = super().flatten(value)
        for i, length in self._texts:
            flat[i] = _code_points(self.leaves[i], flat[i], length)
        return flat

    def nest(self, values: Sequence[Any]) -> Any:
        """Returns the nested value that Gymnasium expects, from a value per leaf. Copies nothing."""
        return values[0] if self.single else _nest(self.space, iter(values))

    @property
    def dtypes(self) -> list[np.dtype]:
        """The dtypes of the parts of the space; that of a Discrete may differ from its leaf, which is int64."""
        return [np.dtype(part.dtype) for part in self._part_spaces]

    def element_splitter(self) -> Callable[[Sequence[np.ndarray]], list[Any]]:
        """Returns a function that splits batched leaf arrays `[E, *shape]` into a list of E nested values.

        The values are Python integers for Discrete, otherwise views of a copy, so an env may keep or change them.
        """
        splitters = [_split_integers if isinstance(part, spaces.Discrete) else _split for part in self._part_spaces]

        def split_nested(arrays: Sequence[np.ndarray]) -> list[Any]:
            columns = [split([array]) for split, array in zip(splitters, arrays, strict=True)]
            return [self.nest(row) for row in zip(*columns, strict=True)]

        return splitters[0] if self.single else split_nested


def parts_of(space: spaces.Dict | spaces.Tuple) -> Iterable[tuple[Any, Space]]:
    """Returns the parts of a space with their names or indices."""
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def _code_points(leaf: Leaf, texts: Any, length: int) -> np.ndarray:
    """Returns the code points of one text, `[length]`, or of a sequence of texts, `[E, length]`."""
    array = np.asarray(texts)
    if not np.issubdtype(array.dtype, np.str_) or np.char.str_len(array).max(initial=0) > length:
        raise DataError(
            f"the env returned {texts!r:.200} as {'.'.join(leaf.key)!r}, but its space only holds text of at most "
            f"{length} characters"
        )
    return array.astype(f"U{length}")[..., None].view(np.int32)


def write_env(leaves: Sequence[Leaf], out: Sequence[np.ndarray], e: int, values: Sequence[Any]) -> None:
    """Checks shape and dtype of the leaf values of env `e`, and copies them into `array[e]` of each array of `out`.
    Raises `DataError` if a value does not fit; the message names the leaf, and both shapes and dtypes."""
    for leaf, array, value in zip(leaves, out, values, strict=True):
        write_leaf(leaf, array, e, value)


def write_leaf(leaf: Leaf, array: np.ndarray, e: int, value: Any) -> None:
    """Copies the value of env `e` into `array[e]`; see `write_env`."""
    if type(value) is not np.ndarray or value.shape != leaf.shape or value.dtype is not array.dtype:
        check_value(leaf, value, array.dtype, e)
    array[e] = value


def checked_values(leaf: Leaf, values: Any, array: np.ndarray) -> np.ndarray:
    """Returns the values of a leaf for all envs as an array that can be assigned to `array` without changing a value.

    Called in every step: if shape and dtype equal those of `array`, it only makes two comparisons. Raises `DataError`
    if a value does not fit; the message names the leaf, the first such env, and both shapes and dtypes. `values` is an
    array `[E, *shape]`, or a sequence with a value per env; the result may share its memory. `array`, `[E, *shape]`, is
    not written."""
    try:
        fitting = np.asarray(values)
        if fitting.shape == array.shape and (fitting.dtype is array.dtype or _fits(fitting, array.dtype)):
            return fitting
    except ValueError:
        pass  # of unequal shapes
    items = list(values) if np.iterable(values) else []
    if len(items) != len(array):
        got = counted(len(items), "value") if items else f"a value of type {type(values).__name__}"
        raise DataError(
            f"the vector env returned {got} as {'.'.join(leaf.key)!r}, but its space has {len(array)} values of shape "
            f"{leaf.shape}, one per env"
        )
    for e, value in enumerate(items):
        check_value(leaf, value, array.dtype, e)
    return np.stack([np.asarray(value).astype(array.dtype) for value in items])


def check_value(leaf: Leaf, value: Any, dtype: np.dtype, e: int | None = None) -> None:
    """Raises `DataError` if the shape of `value` is not the leaf's, or `dtype` cannot represent its numbers.

    Floats may lose precision. Integers must be in the range of an integer `dtype`, whatever their type; floats are not
    converted to integers.
    """
    expected = f"shape {leaf.shape} and dtype {str(leaf.dtype).removeprefix('torch.')}"
    try:
        array = np.asarray(value)
    except ValueError:
        got = f"a ragged {type(value).__name__}"
    else:
        if array.shape == leaf.shape and _fits(array, dtype):
            return
        got = "None" if value is None else f"a value of shape {array.shape} and dtype {array.dtype}"
        if leaf.shape == () and type(value) is int and array.dtype == object:  # too large for NumPy
            got, expected = f"the value {value}", f"dtype {dtype}, which cannot represent it exactly"
        if array.shape == leaf.shape and is_integer(array.dtype) and is_integer(dtype):
            limits, low, high = np.iinfo(dtype), array.min(), array.max()
            got = f"the value {low}" if low == high else f"values from {low} to {high}"
            expected = f"dtype {dtype}, which only holds {limits.min} to {limits.max}"
    where = "the env" if e is None else f"env {e}"
    is_info = leaf.key[0] == "info"
    says = "but in info_keys, or in the first info, it has" if is_info else "but its space has"
    advice = "Return the same shape and dtype in each info" if is_info else "Fix the env or its space"
    raise DataError(f"{where} returned {got} as {'.'.join(leaf.key)!r}, {says} {expected}. {advice}.")


def _fits(values: np.ndarray, dtype: np.dtype) -> bool:
    """Whether `dtype` can represent `values`; see `check_value`."""
    fits = _dtype_fits(values.dtype, dtype)
    return np.array_equal(values.astype(dtype), values) if fits is None else fits


@lru_cache(maxsize=256)
def _dtype_fits(source: np.dtype, stored: np.dtype) -> bool | None:
    """Returns whether `stored` can represent values of dtype `source`; None if that depends on the values."""
    if is_integer(source) and is_integer(stored) and not np.can_cast(source, stored):
        return None
    return np.can_cast(source, stored, "same_kind")


def numpy_dtype(leaf: Leaf) -> np.dtype:
    """Returns the leaf's dtype in numpy."""
    return torch.empty(0, dtype=leaf.dtype).numpy().dtype


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """Returns the torch dtype of the same name. Raises TypeError where there is none."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _walk(space: Space, key: Key, path: Path) -> Iterator[tuple[Leaf, Path, Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for name, part in parts_of(space):
            yield from _walk(part, (*key, str(name)), (*path, name))
    elif isinstance(space, spaces.Discrete):
        yield Leaf(key, (), torch.int64), path, space
    elif isinstance(space, spaces.Text) and key[0] != "action":
        yield Leaf(key, (space.max_length,), torch.int32), path, space
    else:
        if any(kind.__module__.startswith("gym.spaces") for kind in type(space).__mro__):
            raise SpaceError(
                f"{'.'.join(key)!r} has the space {space} of the old package gym. Declare gymnasium.spaces."
                f"{type(space).__name__}, or wrap the env with shimmy.GymV26CompatibilityV0(env=env) or, before Gym "
                "0.26, shimmy.GymV21CompatibilityV0(env=env)."
            )
        why = "has no fixed shape and dtype"
        if not isinstance(space, Space):
            why = "is not one of gymnasium.spaces"
        if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
            try:
                yield Leaf(key, tuple(int(n) for n in space.shape), torch_dtype(np.dtype(space.dtype))), path, space
                return
            except TypeError:
                why = f"has the dtype {space.dtype}, which torch does not have"
        advice = f", or {leave_out('.'.join(map(str, path)))}" if key[0] != "action" and path else ""
        what = "Action" if key[0] == "action" else "Observation"
        raise SpaceError(
            f"{'.'.join(key)!r} cannot be stored as a tensor: its space {space} {why}. Convert it to a Box, "
            f"Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these (gymnasium.wrappers.Transform{what})"
            f"{advice}."
        )


def leave_out(*names: str) -> str:
    """Returns the advice to omit parts of the observation."""
    what = "it" if len(names) == 1 else "them"
    keys = ",".join(names)
    return f"leave {what} out with {opt(f'env.exclude_keys=[{keys}]')}"


def _nest(space: Space, values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _nest(part, values) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(part, values) for part in space.spaces)
    return next(values)


def _split_integers(arrays: Sequence[np.ndarray]) -> list[Any]:
    return arrays[0].tolist()


def _split(arrays: Sequence[np.ndarray]) -> list[Any]:
    copy = arrays[0].copy()
    # Iterating over one dimension would give scalars, which a Box of shape () does not contain.
    return list(copy) if copy.ndim > 1 else [copy[e, ...] for e in range(len(copy))]


def _has_every_value(dtype: torch.dtype, low: Any, high: Any) -> bool:
    """Whether bounds are those of the dtype, as of images of bytes."""
    if dtype == torch.bool:
        return not np.any(low > 0) and not np.any(high < 1)
    least, most = (-np.inf, np.inf) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return bool(np.all(low <= least) and np.all(high >= most))


def outside(
    space: spaces.Space,
    values: Mapping[Key, torch.Tensor],
    subject: str = "the first {} of the env has",
    advice: str = "Correct the bounds: wrappers and other libraries rely on them.",
    name: str = "observation",
) -> str:
    """Returns a sentence about the first of `values` beyond the bounds of its `Box`, `Discrete` or `MultiDiscrete`; ""
    if there is none. `name` is the key of a space that is not a Dict. Spaces deeper than in a Dict are not compared."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {name: space}
    for key, value in values.items():
        part = parts.get(key[0]) if len(key) == 1 else None
        if isinstance(part, spaces.Box):
            low, high = part.low, part.high
        elif isinstance(part, spaces.Discrete | spaces.MultiDiscrete):
            low, high = part.start, part.start + (part.n if isinstance(part, spaces.Discrete) else part.nvec) - 1
        else:
            continue
        # Scaling a value to its bounds rounds. The least integer has no absolute value.
        least, most = low - 1e-6 * np.abs(low, dtype=float), high + 1e-6 * np.abs(high, dtype=float)
        if _has_every_value(value.dtype, least, most):
            continue
        seen = value.numpy(force=True).reshape(-1, *np.shape(low))
        if (seen.min(0) < least).any() or (seen.max(0) > most).any():
            said = f"{subject.format('.'.join(key))} values from {seen.min():.6g} to {seen.max():.6g}"
            return f"{said}, outside of the space {part!s:.100}. {advice}"
    return ""
