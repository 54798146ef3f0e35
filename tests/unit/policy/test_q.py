"""Epsilon-greedy: how often by chance, with which probability, and that epsilon travels with the weights."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.config import QMlpPolicyConfig
from collectx.env.base import EnvSpec
from collectx.errors import SpaceError
from collectx.policy import ExplorationType, build, make_actor
from collectx.policy.weights import FlatWeights

CPU = torch.device("cpu")
CFG = QMlpPolicyConfig("q_mlp", [8], "tanh")


def spec_of(action_space, num_envs=2000):
    box = spaces.Box(-1, 1, (3,), np.float32)
    action = Leaf(("action",), action_space.shape, torch.int64 if action_space.shape == () else torch.float32)
    return EnvSpec(num_envs, (Leaf(("observation",), (3,), torch.float32),), (action,), box, action_space)


def policy_of(spec, epsilon):
    policy = build(CFG, spec, seed=0)
    policy.epsilon.fill_(epsilon)
    with torch.no_grad():
        policy.out.weight.zero_()
        policy.out.bias.copy_(torch.tensor([0.0, 3.0, 1.0, 2.0]))
    return policy


def acted(policy, spec, exploration=ExplorationType.RANDOM):
    torch.manual_seed(0)
    with torch.inference_mode():
        return make_actor(policy, spec, CPU, exploration).act([torch.zeros(spec.num_envs, 3)])


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_frequencies_and_probabilities(epsilon):
    spec = spec_of(spaces.Discrete(4, start=5), 20_000)
    policy = policy_of(spec, epsilon)
    action, log_prob = acted(policy, spec)
    probability = torch.full((4,), epsilon / 4)
    probability[1] += 1 - epsilon
    torch.testing.assert_close(policy.index(action).bincount(minlength=4) / 20_000, probability, atol=0.015, rtol=0)
    assert action.min() >= 5
    torch.testing.assert_close(log_prob.exp(), probability[policy.index(action)])
    again, entropy = policy.evaluate([torch.zeros(20_000, 3)], action)
    torch.testing.assert_close(again, log_prob)
    expected = -sum(p * math.log(p) for p in probability.tolist() if p > 0)
    torch.testing.assert_close(entropy[0], torch.tensor(expected))


def test_greedy_without_exploration():
    spec = spec_of(spaces.Discrete(4))
    (action,) = acted(policy_of(spec, 1.0), spec, ExplorationType.DETERMINISTIC)
    assert action.unique().tolist() == [1]


def test_epsilon_is_among_the_weights():
    spec = spec_of(spaces.Discrete(4))
    there = policy_of(spec, 1.0)
    actor = make_actor(there, spec, CPU, ExplorationType.RANDOM)
    weights = FlatWeights(there)
    weights.adopt()
    buffer = torch.zeros(weights.nbytes, dtype=torch.uint8)
    FlatWeights(policy_of(spec, 0.0)).write(buffer)
    weights.read(buffer)
    with torch.inference_mode():
        assert actor.act([torch.zeros(2000, 3)])[0].unique().tolist() == [1]


def test_other_action_spaces():
    with pytest.raises(SpaceError, match="policy=q_mlp"):
        build(CFG, spec_of(spaces.Box(-1, 1, (2,), np.float32)), seed=0)
