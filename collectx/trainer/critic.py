"""The value function that goes with a policy. Owned by the trainer: it is never published."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from collectx.env.base import EnvSpec
from collectx.policy.initial import single_threaded
from collectx.policy.spaces import observation_leaves
from collectx.policy.stochastic import Flatten, StochasticPolicy, initialize


class Critic(nn.Module):
    """A network like the policy's, but with weights and one output of its own.

    For a policy of the user's own: two tanh layers of 64 over the flattened observation.
    """

    def __init__(self, policy: Callable, spec: EnvSpec, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]), single_threaded():
            torch.random.default_generator.manual_seed(seed)
            if isinstance(policy, StochasticPolicy):
                self.encode: nn.Module = policy.encode
                self.body: nn.Module = copy.deepcopy(policy.body)
                width = policy.num_features
            else:
                flatten = Flatten(observation_leaves(spec), spec.observation_space)
                self.encode = flatten
                self.body = nn.Sequential(nn.Linear(flatten.num_outputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
                width = 64
            self.out = nn.Linear(width, 1)
            initialize(self.body, math.sqrt(2))
            initialize(self.out, 1.0)

    def forward(self, observation: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor `[B, *shape]` per observation leaf to values `[B]`."""
        return self.out(self.body(self.encode(observation))).squeeze(-1)
