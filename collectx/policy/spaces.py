"""The spaces of the leaves that policies read and write."""

from __future__ import annotations

from gymnasium import Space, spaces

from collectx.batch import Key


def input_space(space: Space, key: Key) -> Space:
    """Returns the part of an observation space that belongs to the leaf `key`: the parts of a Dict use its keys, those
    of a Tuple are below `("observation",)`."""
    return _part(space, key if isinstance(space, spaces.Dict) else key[1:])


def action_space(space: Space, key: Key) -> Space:
    """Returns the part of an action space that belongs to the leaf `key`: `("action", "arm")` is the entry "arm" of a
    Dict."""
    return _part(space, key[1:])


def _part(space: Space, path: Key) -> Space:
    for name in path:
        if isinstance(space, spaces.Dict):
            space = space[name]
        elif isinstance(space, spaces.Tuple):
            space = space[int(name)]
        else:
            raise KeyError(f"{path} does not exist in {space}")
    return space
