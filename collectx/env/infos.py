"""The kept entries of `info`, as leaves `("info", name)`. A mask `("info", "_name")` says where `info` had the entry,
as in Gymnasium's vector envs.

Called by the Gymnasium adapters, in the worker's process. Shapes and dtypes are taken from the infos of one episode at
most, as Gymnasium declares no space for infos. Must not know how envs are stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from collectx.batch import Leaf
from collectx.env.spaces import numpy_dtype, torch_dtype
from collectx.errors import ShapeError, SpaceError

# Steps of a longer episode in which the entries are searched.
PROBED_STEPS = 10_000


@dataclass(frozen=True)
class _Entry:
    """An entry of `info`: its leaves, the paths of their values within it, and its mask."""

    name: str
    leaves: tuple[Leaf, ...]
    paths: tuple[tuple[Any, ...], ...]

    @property
    def mask(self) -> Leaf:
        return Leaf(("info", f"_{self.name}"), (), torch.bool)

    def values(self, info: Mapping) -> Iterator[Any]:
        for leaf, path in zip(self.leaves, self.paths, strict=True):
            value = info[self.name]
            try:
                for part in path:
                    value = value[part]
            except (KeyError, IndexError, TypeError) as error:
                raise ShapeError(f"{'.'.join(leaf.key)}: missing from the info, which has {value!r:.200}") from error
            yield value


class InfoKeys:
    """The kept info entries of one env, or of a vector of envs.

    An entry is a number, an array, or a dict of these. Where `info` does not have it (mostly at a reset, or before an
    episode's last step), zeros are stored and its mask is False.

    Args:
        names: top-level keys of `info`.
        infos: infos of one env; read until each entry has occurred.

    Attributes:
        leaves: for each name `("info", name)`, or `("info", name, part)` for each part of a dict, then
            `("info", "_name")`, [] bool.

    Raises:
        SpaceError: an entry is in none of `infos`, or is not numeric.
    """

    def __init__(self, names: Sequence[str], infos: Iterable[Mapping]):
        examples: dict[str, Any] = {}
        known: dict[str, None] = {}
        for info in infos:
            known |= dict.fromkeys(map(str, info))
            examples |= {name: info[name] for name in names if name in info and name not in examples}
            if len(examples) == len(set(names)):
                break
        for name in names:
            if name not in examples:
                raise SpaceError(
                    f"env.info_keys: the infos of one episode (or its first {PROBED_STEPS} steps) have no {name!r}; "
                    f"they have {', '.join(sorted(known)) or 'nothing'}"
                )
        self._entries = [_entry(name, examples[name]) for name in names]
        self.leaves = tuple(leaf for entry in self._entries for leaf in (*entry.leaves, entry.mask))

    def values(self, info: Mapping) -> list[Any]:
        """One value for each of `leaves`, from one env's info.

        Raises:
            ShapeError: an entry lacks a part.
        """
        values: list[Any] = []
        for entry in self._entries:
            is_present = entry.name in info
            values += entry.values(info) if is_present else [np.zeros(leaf.shape, bool) for leaf in entry.leaves]
            values.append(is_present)
        return values

    def rows(self, info: Mapping, num_envs: int) -> list[np.ndarray]:
        """One array `[num_envs, *shape]` for each of `leaves`, from a vector env's info; owned by the caller.

        Raises:
            ShapeError: an entry lacks a part.
        """
        rows: list[np.ndarray] = []
        for entry in self._entries:
            is_present = np.full(num_envs, entry.name in info)
            if entry.name in info:
                is_present &= np.asarray(info.get(f"_{entry.name}", True), bool)
                values = [np.array(value) for value in entry.values(info)]
                for value in values:
                    if value.shape[:1] == (num_envs,):
                        value[~is_present] = 0
            else:
                values = [np.zeros((num_envs, *leaf.shape), numpy_dtype(leaf)) for leaf in entry.leaves]
            rows += [*values, is_present]
        return rows

    def last_rows(self, info: Mapping, ended: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The entries of the first and of the final infos, as from `rows`, of a vector env in SAME_STEP mode. An entry
        of an ended env that is in `info` but not in `info["final_info"]` was added by a wrapper of the vector env, and
        belongs to the final info."""
        first = self.rows(info, len(ended))
        final = self.rows(info.get("final_info", {}), len(ended))
        start = 0
        for entry in self._entries:
            end = start + len(entry.leaves)
            beside = ended & first[end] & ~final[end]
            for at in range(start, end + 1):
                final[at][beside] = first[at][beside]
                first[at][beside] = 0
            start = end + 1
        return first, final


def of_each_env(info: Mapping, num_envs: int) -> Iterator[dict[str, Any]]:
    """The info of each env, from a vector env's info."""
    for e in range(num_envs):
        yield _of_env(info, e)


def _of_env(info: Mapping, e: int) -> dict[str, Any]:
    one = {}
    for key, value in info.items():
        mask = info.get(f"_{key}")
        if str(key).startswith("_") or (mask is not None and not mask[e]):
            continue
        if isinstance(value, Mapping):
            one[key] = _of_env(value, e)
        elif isinstance(value, np.ndarray):
            one[key] = value[e]
    return one


def _entry(name: str, value: Any) -> _Entry:
    parts = list(_walk(name, value, ()))
    if not parts:
        raise SpaceError(f"env.info_keys: {name!r} is an empty dict: only numbers and arrays can be kept")
    return _Entry(name, tuple(leaf for leaf, _ in parts), tuple(path for _, path in parts))


def _walk(name: str, value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Leaf, tuple[Any, ...]]]:
    """Yields the leaf and the path of every number and array in an info entry.

    Args:
        name: the key of the entry in the info.
        value: the part of the entry at `path`.
        path: the keys from the entry to `value`.
    """
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _walk(name, inner, (*path, part))
        return
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, object)  # of uneven shape
    if array.dtype.kind not in "biuf":
        shown = ".".join(map(str, (name, *path)))
        raise SpaceError(
            f"env.info_keys: {shown!r} is not numeric ({value!r:.100}): only numbers, arrays and dicts of these can be "
            "kept"
        )
    yield Leaf(("info", name, *map(str, path)), array.shape, torch_dtype(array.dtype)), path
