"""`policy.normalize_observations`: normalises observations by their running mean and variance, which are buffers of the
policy.

    batch --update, in the trainer--> statistics --published with the weights--> workers, checkpoints, exports

Only the trainer calls `update`. Everywhere else, the statistics are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from collectx.errors import ConfigError
from collectx.policy.stochastic import Flatten

# Limits the inputs of a network, because a kind of observation that was rare so far could be far from 0.
_LARGEST = 10.0
# Added to variances, so that a number that never changes becomes 0.
_EPSILON = 1e-8


class Moments(nn.Module):
    """Count, mean and variance of all rows so far. They do not depend on the order of the rows, or on their division
    into batches, except for the rounding of float64. `count`, `mean` and `variance` are float64 buffers, `[]`,
    `[width]` and `[width]`; 0, 0 and 1 before the first row."""

    count: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))

    @torch.no_grad()
    def add(self, rows: torch.Tensor) -> None:
        """Adds rows `[N, width]`, N at least 1 (Chan et al. 1983, "Algorithms for Computing the Sample Variance")."""
        variance, mean = torch.var_mean(rows.double(), 0, correction=0)
        total = self.count + len(rows)
        share, delta = len(rows) / total, mean - self.mean
        self.mean += delta * share
        self.variance.lerp_(variance, share).add_(delta.square() * (share * (1 - share)))
        self.count.copy_(total)

    def scale(self) -> torch.Tensor:
        """Returns one over the standard deviation, `[width]` float64."""
        return (self.variance + _EPSILON).rsqrt()


class Normalized(Moments):
    """An encoder whose outputs have mean 0 and variance 1 over all frames so far, except for the one-hot columns of
    Discrete parts. Raises `ConfigError` if there are no others (None: no parts)."""

    _shift: torch.Tensor
    _scale: torch.Tensor
    _is_one_hot: torch.Tensor

    def __init__(self, encode: Flatten | None):
        if encode is None or encode.is_one_hot.all():
            raise ConfigError(
                "policy.normalize_observations=true cannot be used: the env observes no vectors. Discrete values are "
                "already one-hot, and images have a scale of their own. Use policy.normalize_observations=false."
            )
        super().__init__(encode.num_outputs)
        self.encode = encode
        self.num_outputs = encode.num_outputs
        # What `forward` computes with, in the dtype of networks.
        self.register_buffer("_shift", torch.zeros(self.num_outputs))
        self.register_buffer("_scale", torch.ones(self.num_outputs))
        self.register_buffer("_is_one_hot", encode.is_one_hot, persistent=False)

    def forward(self, observation: Sequence[torch.Tensor]) -> torch.Tensor:
        """Like `Flatten.forward`, but normalised."""
        return (self.encode(observation) - self._shift).mul_(self._scale).clamp_(-_LARGEST, _LARGEST)

    def update(self, observation: Sequence[torch.Tensor]) -> None:
        """Adds observations, a tensor `[..., *shape]` per leaf, to the statistics, in place."""
        self.add(self.encode(observation).reshape(-1, self.num_outputs))
        self._shift.copy_(self.mean.masked_fill(self._is_one_hot, 0.0))
        self._scale.copy_(self.scale().masked_fill(self._is_one_hot, 1.0))
