"""The interface of actors: policies as the rollout calls them, with fixed keys, dtypes and device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from collectx.batch import Leaf
from collectx.policy.fast_call import Acceleration
from collectx.policy.recurrent import StateSpec


class Actor:
    """A policy ready to act.

    Attributes:
        module: holds the policy's parameters; None for a policy without parameters.
        device: where `module` acts. The rollout copies observations there and copies the outputs to the slot.
        leaves: the outputs of `act`, in order: first every leaf of `EnvSpec.action`, then the policy's other outputs
            (`("action_log_prob",)`, `("loc",)`, ...). An observation leaf among them is overwritten by the policy: a
            batch holds the policy's value. Shapes are one env's, without the batch dimension.
        states: the state of a recurrent policy, see `collectx.policy.recurrent`. `act` takes the states that the env
            does not observe after the env's observation.
    """

    module: nn.Module | None = None
    device: torch.device
    leaves: tuple[Leaf, ...]
    states: tuple[StateSpec, ...] = ()

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One forward: `observation` holds one tensor `[E, *shape]` per observation leaf, on `device`. Returns a tensor
        `[E, *leaf.shape]` per leaf of `leaves`, or `[*leaf.shape]` where the group is one env (`EnvSpec.is_single`).
        Called under `torch.inference_mode`, with the exploration type set. The next call may overwrite the result."""
        raise NotImplementedError

    def reset(self) -> None:
        """Discards random numbers that were drawn in advance. Called after a new seed."""

    def accelerate(self, acceleration: Acceleration) -> None:
        """Makes later calls faster. Copying newer weights into `module`'s tensors still takes effect; replacing the
        tensors does not."""
