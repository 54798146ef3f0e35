"""The spaces of the leaves that policies read and write."""

from __future__ import annotations

import numpy as np
from gymnasium import Space, spaces

from collectx.batch import Key

# Larger bounds, such as the largest value of a dtype, bound nothing.
_UNBOUNDED = 1e9


def input_space(space: Space, key: Key) -> Space:
    """Returns the part of an observation space that belongs to the leaf `key`: the parts of a Dict use its keys, those
    of a Tuple are below `("observation",)`."""
    return _part(space, key if isinstance(space, spaces.Dict) else key[1:])


def action_space(space: Space, key: Key) -> Space:
    """Returns the part of an action space that belongs to the leaf `key`: `("action", "arm")` is the entry "arm" of a
    Dict."""
    return _part(space, key[1:])


def largest_value(space: Space) -> float:
    """Returns the largest absolute value in a Box, MultiBinary or MultiDiscrete space; 1 if it has no bound, or is
    0."""
    if isinstance(space, spaces.MultiDiscrete):
        largest = float(np.abs([space.start, space.start + space.nvec - 1]).max())
    elif isinstance(space, spaces.Box) and space.dtype != bool:
        largest = float(np.abs([space.low, space.high], dtype=np.float64).max())
    else:
        largest = 1.0
    return largest if 0 < largest < _UNBOUNDED else 1.0


def _part(space: Space, path: Key) -> Space:
    for name in path:
        if isinstance(space, spaces.Dict):
            space = space[name]
        elif isinstance(space, spaces.Tuple):
            space = space[int(name)]
        else:
            raise KeyError(f"{path} does not exist in {space}")
    return space
