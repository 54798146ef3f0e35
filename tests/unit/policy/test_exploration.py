"""Medians of torch's distributions, which themselves have none."""

import pytest
import torch
from configurations import gym
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import distributions, nn

from collectx.env import read_spec
from collectx.errors import ConfigError
from collectx.policy import ExplorationType, make_actor

SPEC = read_spec(gym(20, "Pendulum-v1"))


class LocAndScale(nn.Module):
    def forward(self, observation):
        return observation[..., :1], observation[..., :1].abs() + 0.1


def median_actor(distribution):
    policy = ProbabilisticTensorDictSequential(
        TensorDictModule(LocAndScale(), ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=distribution),
    )
    return make_actor(policy, SPEC, torch.device("cpu"), ExplorationType.MEDIAN)


def independent(loc, scale):
    return distributions.Independent(distributions.Laplace(loc, scale), 1)


# Each finds the median of its parameters in another way.
@pytest.mark.difference("`exploration_type` MEDIAN and torch's distributions, such as `Normal`")
@pytest.mark.parametrize(
    ("distribution", "median"),
    [
        (distributions.Normal, lambda loc, scale: loc),
        (distributions.LogNormal, lambda loc, scale: loc.exp()),
        (distributions.Gumbel, lambda loc, scale: loc - scale * torch.tensor(2.0).log().log()),
        (independent, lambda loc, scale: loc),
    ],
)
def test_half_of_the_probability_is_below(distribution, median):
    actor, observation = median_actor(distribution), torch.randn(20, 3)
    with torch.inference_mode():
        action = actor.act([observation])[[leaf.key for leaf in actor.leaves].index(("action",))]
    torch.testing.assert_close(action, median(*LocAndScale()(observation)))
    assert not hasattr(distributions.Distribution, "median")


@pytest.mark.difference("`exploration_type` MEDIAN and torch's distributions, such as `Normal`")
def test_a_distribution_without_a_median_is_refused():
    with pytest.raises(
        ConfigError, match=r"exploration_type=median cannot be used: .*VonMises.*Use random, mode, mean or determ"
    ):
        median_actor(lambda loc, scale: distributions.VonMises(loc, 1 / scale))
    assert not hasattr(distributions.Distribution, "median")
