"""The spaces and leaves that policies read."""

from __future__ import annotations

from gymnasium import Space, spaces

from collectx.batch import STEP_COUNT, Key, Leaf
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
    """The input leaves of a policy without keys: `("observation", ...)`; for an env of TorchRL without such keys, all
    leaves but the step count and the agents' ends. Kept infos are never among them."""
    named = tuple(leaf for leaf in spec.observation if leaf.key[0] == "observation")
    return named or tuple(leaf for leaf in spec.observation if leaf.key != STEP_COUNT and leaf not in spec.agents_ends)
