"""Medians of torch's distributions, which themselves have none."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import distributions, nn

from collectx import Collector
from collectx.errors import ConfigError

torch.set_num_threads(1)

# Each with its own way to the median of its parameters.
MEDIANS = {
    "Normal": lambda loc, scale: loc,
    "LogNormal": lambda loc, scale: loc.exp(),
    "Gumbel": lambda loc, scale: loc - scale * torch.tensor(2.0).log().log(),
    "independent": lambda loc, scale: loc,
}


def independent(loc, scale):
    return distributions.Independent(distributions.Laplace(loc, scale), 1)


class LocAndScale(nn.Module):
    def forward(self, observation):
        return observation[..., :1], observation[..., :1].abs() + 0.1


def policy(distribution):
    return ProbabilisticTensorDictSequential(
        TensorDictModule(LocAndScale(), ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=distribution),
    )


def pendulum():
    return gymnasium.make("Pendulum-v1")


@pytest.mark.parametrize("name", MEDIANS)
def test_half_of_the_probability_is_below(name):
    distribution = independent if name == "independent" else getattr(distributions, name)
    with Collector(pendulum, policy(distribution), frames_per_batch=20, exploration_type="MEDIAN") as collector:
        batch = collector.next()
    torch.testing.assert_close(batch["action"], MEDIANS[name](batch["loc"], batch["scale"]))
    assert not hasattr(distributions.Distribution, "median")


def test_a_distribution_that_cannot_tell_is_refused():
    def never():
        raise AssertionError("a worker was started")

    def direction(loc, scale):
        return distributions.VonMises(loc, 1 / scale)

    with pytest.raises(ConfigError, match=r"exploration_type=median: .*VonMises.*use random, mode, mean or determ"):
        Collector(pendulum, policy(direction), frames_per_batch=20, exploration_type="median", pre_collect_hook=never)
    assert not hasattr(distributions.Distribution, "median")
