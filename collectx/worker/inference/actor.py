"""What workers use in place of a policy if the inference server calls the policy, and they only step envs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from collectx.batch import Leaf
from collectx.policy.base import Actor
from collectx.policy.recurrent import StateSpec


@dataclass
class ServedActor(Actor):
    """Describes the outputs of the server's policy; see `collectx.policy.base.Actor`. Nobody calls `act`."""

    leaves: tuple[Leaf, ...]
    states: tuple[StateSpec, ...]
    module: nn.Module | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
