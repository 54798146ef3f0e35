"""The interface of actors. An actor is a policy as the rollout calls it, with fixed keys, dtypes and device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from collectx.batch import Leaf
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
