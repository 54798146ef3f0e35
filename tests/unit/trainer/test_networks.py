"""Gradients that are written out equal autograd's bit by bit."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from collectx.batch import Leaf
from collectx.config.schema.policy import MlpPolicyConfig
from collectx.env.base import EnvSpec
from collectx.policy import mlp
from collectx.trainer.actor_critic import Critic, MlpNetworks, Networks, networks_of

DISCRETE, LATER = spaces.Discrete(3), spaces.Discrete(5, start=2)
BOX, SCREW = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2, 2), np.float64)
FIELDS = {
    "as it is": {},
    "relu": {"activation": "relu", "hidden_sizes": (7,)},
    "linear": {"hidden_sizes": ()},
    "normalised": {"normalize_observations": True},
}


def made(action, **fields):
    """Makes policy and critic for `action` and an observation of four numbers."""
    space = spaces.Box(-np.inf, np.inf, (4,))
    dtype = torch.int64 if isinstance(action, spaces.Discrete | spaces.MultiDiscrete) else torch.float32
    if action.dtype == np.float64:
        dtype = torch.float64
    spec = EnvSpec(
        num_envs=1,
        observation=(Leaf(("observation",), (4,), torch.float32),),
        action=(Leaf(("action",), action.shape, dtype),),
        observation_space=space,
        action_space=action,
    )
    torch.manual_seed(3)
    policy = mlp.build(MlpPolicyConfig(kind="mlp", **fields), spec)
    critic = Critic(policy, spec, 0)
    for parameter in (*policy.parameters(), *critic.parameters()):
        nn.init.normal_(parameter)
    return policy, critic


def gradients(networks, policy, critic, action, rows):
    """Returns the results for `rows` random frames, and the gradients of all parameters."""
    generator = torch.Generator().manual_seed(rows)
    observation, d_log_prob, d_value = (torch.randn(shape, generator=generator) for shape in ((rows, 4), rows, rows))
    action.seed(rows)
    acted = torch.from_numpy(np.stack([action.sample() for _ in range(rows)]))
    found = networks.evaluate([observation], acted)
    networks.backward(d_log_prob, -0.01, d_value)
    return *found, *(parameter.grad for module in (policy, critic) for parameter in module.parameters())


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("action", [DISCRETE, LATER, BOX, SCREW], ids=str)
def test_gradients_equal_those_of_autograd(action, fields):
    policy, critic = made(action, **fields)
    if fields.get("normalize_observations"):
        policy.encode.update([torch.randn(50, 4) * 3 + 1])
    others = copy.deepcopy((policy, critic))
    networks = networks_of(policy, critic)
    assert type(networks) is MlpNetworks
    for rows in (1, 7, 256):
        mine = gradients(networks, policy, critic, action, rows)
        for parameter in (*others[0].parameters(), *others[1].parameters()):
            parameter.grad = None
        theirs = gradients(Networks(*others), *others, action, rows)
        assert all(map(torch.equal, mine, theirs))
        assert not any(each.requires_grad for each in mine)


def _hook(policy, critic):
    critic.out.register_forward_hook(lambda *arguments: None)


def _replace(policy, critic):
    policy.body[0] = nn.utils.parametrizations.weight_norm(policy.body[0])


def _widen(policy, critic):
    policy.double()


@pytest.mark.parametrize("change", [_hook, _replace, _widen])
def test_changed_networks_use_autograd(change):
    policy, critic = made(DISCRETE)
    change(policy, critic)
    assert type(networks_of(policy, critic)) is Networks


@pytest.mark.parametrize(
    ("action", "fields"),
    [(spaces.MultiDiscrete([2, 3]), {}), (spaces.MultiBinary(2), {}), (BOX, {"activation": "elu"})],
)
def test_other_networks_use_autograd(action, fields):
    assert type(networks_of(*made(action, **fields))) is Networks


def test_outputs_without_a_gradient_are_left_out():
    """Such as the entropy of a policy that returns a constant."""
    weight = nn.Parameter(torch.ones(()))

    class Policy(nn.Module):
        def evaluate(self, observation, action):
            return observation[0] * weight, torch.zeros(2)

    networks = networks_of(Policy(), lambda observation: observation[0] * weight * 2)
    _, entropy, _ = networks.evaluate([torch.tensor([3.0, 5.0])], torch.zeros(2))
    assert entropy.tolist() == [0.0, 0.0]
    networks.backward(torch.tensor([1.0, 1.0]), -1.0, torch.tensor([0.0, 1.0]))
    assert weight.grad == 18
