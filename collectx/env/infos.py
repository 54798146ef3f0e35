"""The entries of `info` that a user wants to keep, as leaves `("info", name)`.

Called by the Gymnasium adapters, in the worker's process. Shapes and dtypes are learnt from one reset and one step,
as Gymnasium declares no space for infos. Must not know how envs are stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collectx.batch import Leaf
from collectx.env.spaces import torch_dtype
from collectx.errors import ShapeError, SpaceError


class InfoKeys:
    """The kept info entries of one env.

    An entry that the env gives only in `step` is stored as 0 for the observation after a reset; an entry that it does
    not give in `step` cannot be kept.

    Args:
        names: top-level keys of `info`.
        probe: gives the infos of one reset and of one step; called once.

    Raises:
        SpaceError: an entry is missing from the step's info or is not numeric.
    """

    def __init__(self, names: Sequence[str], probe: Callable[[], tuple[Mapping, Mapping]]):
        self.names = tuple(names)
        _, at_step = probe()
        self.leaves = tuple(self._leaf(name, at_step) for name in self.names)
        self._zeros = tuple(np.zeros(leaf.shape, bool) for leaf in self.leaves)

    @staticmethod
    def _leaf(name: str, info: Mapping) -> Leaf:
        if name not in info:
            known = ", ".join(sorted(str(key) for key in info)) or "nothing"
            raise SpaceError(f"env.info_keys: the info of a step has no {name!r}; it has {known}")
        value = np.asarray(info[name])
        if value.dtype.kind not in "biuf":
            raise SpaceError(
                f"env.info_keys: {name!r} is not numeric ({info[name]!r:.100}): only numbers and arrays can be kept"
            )
        return Leaf(("info", name), value.shape, torch_dtype(value.dtype))

    def values(self, info: Mapping, after_step: bool) -> list[Any]:
        """One value per kept entry.

        Raises:
            ShapeError: an entry is missing from a step's info.
        """
        found = []
        for name, zero in zip(self.names, self._zeros, strict=True):
            if name in info:
                found.append(info[name])
            elif after_step:
                raise ShapeError(f"info.{name}: missing from the info of this step, so it cannot be in env.info_keys")
            else:
                found.append(zero)
        return found
