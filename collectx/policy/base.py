"""What every policy becomes before the rollout calls it: an actor, whose keys, dtypes and device are settled once.

Used by the rollout, in the worker's process. Must not know slots, transports or envs (only their specs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from collectx.batch import Leaf
from collectx.policy.acceleration import Acceleration
from collectx.policy.recurrent import Carried


class Actor(Protocol):
    """A policy ready to act.

    Attributes:
        module: the policy's parameters live here; None for a policy without parameters.
        device: where `module` acts. The rollout brings observations there and brings what comes back to the slot.
        leaves: what `act` returns, in order: first every leaf of `EnvSpec.action`, then what else the policy writes
            (`("action_log_prob",)`, `("loc",)`, ...); a leaf of the observation where the policy overwrites it, which a
            batch then has in its place. Shapes are one env's, without the batch dimension.
        carried: what a recurrent policy reads that it has written below `next` a frame before, see
            `collectx.policy.recurrent`; what of it the env does not observe, `act` takes after the env's observation.
    """

    module: nn.Module | None
    device: torch.device
    leaves: tuple[Leaf, ...]
    carried: tuple[Carried, ...]

    def act(self, observation: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """One forward: `observation` has one tensor `[E, *shape]` per leaf that is seen, on `device`. Returns a tensor
        `[E, *leaf.shape]` per leaf of `leaves`, or `[*leaf.shape]` where the group is one env (`EnvSpec.is_single`).
        Called under `torch.inference_mode`, with the exploration type set. The result may be overwritten by the next
        call."""

    def forget(self) -> None:
        """Begins anew after a new seed: nothing that was drawn before is used."""

    def accelerate(self, how: Acceleration) -> None:
        """Makes the calls that follow faster. Copying newer weights into `module`'s tensors still changes how it acts,
        putting others in their place does not."""
