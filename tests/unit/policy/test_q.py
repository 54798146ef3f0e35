"""Epsilon-greedy: how often by chance, with which probability, and that epsilon travels with the weights."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.config import QMlpPolicyConfig
from collectx.env.base import EnvSpec
from collectx.env.spaces import Structure
from collectx.errors import SpaceError
from collectx.policy import ExplorationType, build, make_actor
from collectx.policy.weights import FlatWeights

CFG = QMlpPolicyConfig("q_mlp", [8], "tanh")
ROWS = 20_000


def spec_of(action):
    observation = Leaf(("observation",), (3,), torch.float32)
    return EnvSpec(ROWS, (observation,), Structure(action, ("action",)).leaves, spaces.Box(-1, 1, (3,)), action)


SPEC = spec_of(spaces.Discrete(4, start=5))


def policy_of(epsilon):
    policy = build(CFG, SPEC, seed=0)
    policy.epsilon.fill_(epsilon)
    with torch.no_grad():
        policy.out.weight.zero_()
        policy.out.bias.copy_(torch.tensor([0.0, 3.0, 1.0, 2.0]))
    return policy


def actor_of(policy, exploration=ExplorationType.RANDOM):
    return make_actor(policy, SPEC, torch.device("cpu"), exploration)


def act(actor):
    torch.manual_seed(0)
    with torch.inference_mode():
        return actor.act([torch.zeros(ROWS, 3)])


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_frequencies_and_probabilities(epsilon):
    policy = policy_of(epsilon)
    action, log_prob = act(actor_of(policy))
    probability = torch.full((4,), epsilon / 4)
    probability[1] += 1 - epsilon
    torch.testing.assert_close(policy.index(action).bincount(minlength=4) / ROWS, probability, atol=0.015, rtol=0)
    assert action.min() >= 5
    torch.testing.assert_close(log_prob.exp(), probability[policy.index(action)])
    evaluated, entropy = policy.evaluate([torch.zeros(ROWS, 3)], action)
    torch.testing.assert_close(evaluated, log_prob)
    expected = -sum(p * math.log(p) for p in probability.tolist() if p > 0)
    torch.testing.assert_close(entropy[0], torch.tensor(expected))


def test_greedy_without_exploration():
    (action,) = act(actor_of(policy_of(1.0), ExplorationType.DETERMINISTIC))
    assert action.unique().tolist() == [6]


def test_epsilon_is_among_the_weights():
    policy = policy_of(1.0)
    actor = actor_of(policy)
    weights = FlatWeights(policy)
    weights.adopt()
    buffer = torch.zeros(weights.nbytes, dtype=torch.uint8)
    FlatWeights(policy_of(0.0)).write(buffer)
    weights.read(buffer)
    assert act(actor)[0].unique().tolist() == [6]


def test_other_action_spaces():
    with pytest.raises(SpaceError, match="policy=q_mlp"):
        build(CFG, spec_of(spaces.Box(-1, 1, (2,))), seed=0)
