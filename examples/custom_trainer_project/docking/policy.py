"""The policy: a factory of a TensorDictModule. Every worker and the trainer call it."""

import torch
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import nn


class Gaussian(nn.Module):
    """Observations [..., inputs] to actions [..., outputs] within `bound`, and their
    log-probabilities [...]."""

    def __init__(self, inputs, outputs, bound, width):
        super().__init__()
        self.mean = nn.Sequential(
            nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)
        )
        self.log_std = nn.Parameter(torch.zeros(outputs))
        self.bound = bound

    def distribution(self, observation):
        return torch.distributions.Normal(self.mean(observation), self.log_std.exp())

    def forward(self, observation):
        distribution = self.distribution(observation)
        # Runs collect with samples; `collectx eval` evaluates the mean.
        samples = interaction_type() is InteractionType.RANDOM
        raw = distribution.sample() if samples else distribution.mean
        action = raw.clamp(-self.bound, self.bound)
        return action, raw, distribution.log_prob(raw).sum(-1)


def make_policy(spec, width):
    """`spec` has the env's spaces. All that the policy writes is in the batch; `raw` is
    the action before the clamp."""
    inputs, outputs = spec.observation_space.shape[0], spec.action_space.shape[0]
    module = Gaussian(inputs, outputs, float(spec.action_space.high[0]), width)
    return TensorDictModule(
        module, in_keys=["observation"], out_keys=["action", "raw", "log_prob"]
    )
