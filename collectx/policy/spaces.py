"""Finds the space behind a leaf. Used by the policies; must not know how observations become tensors."""

from __future__ import annotations

from gymnasium import Space, spaces

from collectx.batch import STEP_COUNT, Key, Leaf, is_agents_end
from collectx.env.base import EnvSpec


def subspace(space: Space, key: Key) -> Space:
    """The space of the leaf `key`: `("observation", "camera")` is the entry "camera" of a Dict, "0" a Tuple's first."""
    for part in key[1:]:
        if isinstance(space, spaces.Dict):
            space = space[part]
        elif isinstance(space, spaces.Tuple):
            space = space[int(part)]
        else:
            raise KeyError(f"{key} names an entry of {space}, which has none")
    return space


def observation_leaves(spec: EnvSpec) -> tuple[Leaf, ...]:
    """The leaves that a policy without keys is given: `("observation", ...)`; where an env of TorchRL has none of that
    name, all but a step count and its agents' ends. Kept infos are not among them."""
    named = tuple(leaf for leaf in spec.observation if leaf.key[0] == "observation")
    return named or tuple(leaf for leaf in spec.observation if leaf.key != STEP_COUNT and not is_agents_end(leaf))
