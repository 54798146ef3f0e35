"""The interface of actors. An actor is a policy as the rollout calls it, with fixed keys, dtypes and device.

Also finds the Gymnasium spaces of the leaves that policies read and write.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import nn

from collectx.batch import Key, Leaf
from collectx.policy.fast_call import Acceleration
from collectx.policy.recurrent import StateSpec


class Actor:
    """A policy that is ready to act for an env group.

    Attributes:
        module: the module with the policy's parameters; None for a policy without parameters.
        device: the device of `module`. The rollout copies observations there, and the outputs to the slot.
        leaves: the outputs of `act`, in order: every leaf of `EnvSpec.action`, then the policy's other outputs
            (`("action_log_prob",)`, `("loc",)`, ...). If an observation leaf is among them, batches contain the
            policy's value in place of the env's. Shapes are those of one env.
        states: the states of a recurrent policy, see `collectx.policy.recurrent`. `act` takes those that the env does
            not observe, after the env's observation.
    """

    module: nn.Module | None = None
    device: torch.device
    leaves: tuple[Leaf, ...]
    states: tuple[StateSpec, ...] = ()

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Returns the policy's outputs for an observation: a tensor `[E, *leaf.shape]` per leaf of `leaves`, or
        `[*leaf.shape]` for a single env (`EnvSpec.is_single`). `observation` contains a tensor `[E, *shape]` per
        observation leaf, on `device`. Called under `torch.inference_mode`, with the exploration type set. The next call
        may overwrite the result."""
        raise NotImplementedError

    def reset(self) -> None:
        """Discards random numbers that were drawn in advance. Called after the generators were seeded."""

    def accelerate(self, acceleration: Acceleration) -> None:
        """Makes later calls faster. New weights take effect if they are copied into the same tensors."""


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
