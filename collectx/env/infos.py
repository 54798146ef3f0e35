"""The entries of `info` that a user wants to keep, as leaves `("info", name)`, each with a mask `("info", "_name")` of
where the env gave it, as Gymnasium's vector envs have.

Called by the Gymnasium adapters, in the worker's process. Shapes and dtypes are learnt from the infos of one episode at
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

# Steps in which an entry is looked for where the episode does not end before.
PROBED_STEPS = 10_000


@dataclass(frozen=True)
class _Entry:
    """An entry of `info`: its leaves, where their values are in it, and its mask."""

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

    An entry is a number, an array, or a dict of these. Where an env does not give it, as most do at a reset and some in
    all steps but an episode's last, zeros are stored and its mask is False.

    Args:
        names: top-level keys of `info`.
        infos: those of one env, in which the entries are looked for; read only until all are found.

    Attributes:
        leaves: for each name `("info", name)`, or `("info", name, part)` for each part of a dict, then
            `("info", "_name")`, [] bool.

    Raises:
        SpaceError: an entry is in none of `infos`, or is not numeric.
    """

    def __init__(self, names: Sequence[str], infos: Iterable[Mapping]):
        found: dict[str, Any] = {}
        known: dict[str, None] = {}
        for info in infos:
            known |= dict.fromkeys(map(str, info))
            found |= {name: info[name] for name in names if name in info and name not in found}
            if len(found) == len(set(names)):
                break
        for name in names:
            if name not in found:
                raise SpaceError(
                    f"env.info_keys: the infos of one episode (or its first {PROBED_STEPS} steps) have no {name!r}; "
                    f"they have {', '.join(sorted(known)) or 'nothing'}"
                )
        self._entries = [_entry(name, found[name]) for name in names]
        self.leaves = tuple(leaf for entry in self._entries for leaf in (*entry.leaves, entry.mask))

    def values(self, info: Mapping) -> list[Any]:
        """One value for each of `leaves`, from one env's info.

        Raises:
            ShapeError: an entry lacks a part.
        """
        values: list[Any] = []
        for entry in self._entries:
            is_there = entry.name in info
            values += entry.values(info) if is_there else [np.zeros(leaf.shape, bool) for leaf in entry.leaves]
            values.append(is_there)
        return values

    def rows(self, info: Mapping, num_envs: int) -> list[np.ndarray]:
        """One array `[num_envs, *shape]` for each of `leaves`, from a vector env's info; owned by the caller.

        Raises:
            ShapeError: an entry lacks a part.
        """
        rows: list[np.ndarray] = []
        for entry in self._entries:
            is_there = np.full(num_envs, entry.name in info)
            if entry.name in info:
                is_there &= np.asarray(info.get(f"_{entry.name}", True), bool)
                values = [np.array(value) for value in entry.values(info)]
                for value in values:
                    if value.shape[:1] == (num_envs,):
                        value[~is_there] = 0
            else:
                values = [np.zeros((num_envs, *leaf.shape), numpy_dtype(leaf)) for leaf in entry.leaves]
            rows += [*values, is_there]
        return rows

    def last_rows(self, info: Mapping, ended: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Of a vector env that resets its envs in the step in which they end: the entries of the first infos, and of
        the final ones, both as `rows`. What is not in `info["final_info"]` of an env that ended, but beside it, was
        added by a wrapper of the vector, and is of the final info too."""
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
    """A vector env's info, env by env."""
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
    found = list(_walk(name, value, ()))
    if not found:
        raise SpaceError(f"env.info_keys: {name!r} is an empty dict: only numbers and arrays can be kept")
    return _Entry(name, tuple(leaf for leaf, _ in found), tuple(path for _, path in found))


def _walk(name: str, value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Leaf, tuple[Any, ...]]]:
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
