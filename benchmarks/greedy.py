"""The policy as a plain `nn.Module`, as TorchRL (and a user without collectx) would call it."""

from typing import Any

import torch
from torch import nn


class Greedy(nn.Module):
    """Maps a batched observation to the most likely action of `policy`, a `StochasticPolicy`. Picklable, as it is
    defined at the top level of a module."""

    def __init__(self, policy: Any):
        super().__init__()
        self.policy = policy

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """`[E, *shape]` to `[E, *action shape]`."""
        return self.policy.head.mode(self.policy([observation]))


class Nothing(nn.Module):
    """Does nothing with a vector; the action is 0."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """`[*batch, size]` to `[*batch]`."""
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)
