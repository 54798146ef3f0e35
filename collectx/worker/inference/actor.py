"""The stand-in for the policy in workers that only step envs, while the inference server calls the policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from collectx.batch import Leaf
from collectx.policy.base import Actor
from collectx.policy.recurrent import StateSpec


@dataclass
class ServedActor(Actor):
    """See `collectx.policy.base.Actor`. `act` is not called: the server writes the outputs."""

    leaves: tuple[Leaf, ...]
    states: tuple[StateSpec, ...]
    module: nn.Module | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
