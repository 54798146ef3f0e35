"""The networks of the built-in policies and their heads, on inputs whose outputs are known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from configurations import mlp
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical, Normal

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy import build
from collectx.policy.heads import head_for
from collectx.policy.stochastic import Flatten
from collectx.trainer.actor_critic import Critic

BOX = spaces.Box(-1, 1, (3,), np.float32)
SEEN = Leaf(("observation",), (3,), torch.float32)


def spec_of(space, dtype=torch.int64):
    return EnvSpec(2, (SEEN,), (Leaf(("action",), space.shape, dtype),), BOX, space)


def gains(layer):
    return torch.linalg.svdvals(layer.weight.detach())


def test_first_weights_are_orthogonal_and_the_last_layer_is_small():
    spec = spec_of(spaces.Discrete(4))
    policy = build(mlp(), spec, 0)
    users = SimpleNamespace(observation_keys=["observation"])
    for module, last in ((policy, 0.01), (Critic(policy, spec, 0), 1.0), (Critic(users, spec, 0), 1.0)):
        body = [layer for layer in module.body if isinstance(layer, nn.Linear)]
        for layer, gain in (*((layer, 2**0.5) for layer in body), (module.out, last)):
            torch.testing.assert_close(gains(layer), torch.full_like(gains(layer), gain))
            assert not layer.bias.any()
    body = [layer for layer in Critic(users, spec, 0).body if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in body] == [(3, 64), (64, 64)]
    other = SimpleNamespace(observation_keys=["pos", ("goal", "xy")])
    with pytest.raises(ConfigError, match=r"reads pos, goal.xy \(observation_keys\), but .* the env has observation"):
        Critic(other, spec, 0)


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Discrete(4), torch.int64),
        (spaces.Discrete(3, start=-1), torch.int64),
        (spaces.MultiDiscrete([2, 4, 3]), torch.int64),
        (spaces.MultiDiscrete([[2, 4], [3, 3], [1, 2]], start=[[1, 0], [2, -1], [0, 5]]), torch.int32),
        (spaces.MultiBinary(3), torch.int8),
    ],
    ids=str,
)
def test_a_head_of_numbers_is_a_distribution_for_each(space, dtype):
    """Samples, modes, log-probabilities and entropies are those of torch's distribution over the choices."""
    head = head_for(space, Leaf(("action",), space.shape, dtype))
    counts = np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 2) if space.shape == () else [2] * 3)).ravel()
    start = torch.as_tensor(np.array(getattr(space, "start", 0)))
    raw = torch.randn(5, 6, len(counts), max(counts))
    logits = raw.masked_fill(torch.arange(max(counts)) >= torch.as_tensor(counts)[:, None], -torch.inf)
    expected = Categorical(logits=logits)
    raw = raw.flatten(2)
    assert raw.shape[-1] == head.num_inputs
    action, log_prob = head.sample(raw)
    assert (action.shape, action.dtype) == ((5, 6, *space.shape), dtype)
    assert all(space.contains(each.astype(space.dtype)) for each in action.reshape(30, *space.shape).numpy())
    index = (action - start).reshape(5, 6, len(counts))
    torch.testing.assert_close(log_prob, expected.log_prob(index).sum(-1))
    evaluated, entropy = head.evaluate(raw, action)
    torch.testing.assert_close(evaluated, log_prob)
    torch.testing.assert_close(entropy, Categorical(probs=expected.probs).entropy().sum(-1))
    best = (head.mode(raw) - start).reshape(5, 6, len(counts))
    assert torch.equal(best, logits.argmax(-1))


def test_a_gaussian_head_is_torchs_distribution():
    space = spaces.Box(-1, 1, (2, 3), np.float32)
    head = head_for(space, Leaf(("action",), space.shape, torch.float32))
    (log_std,) = head.parameters()
    with torch.no_grad():
        log_std.copy_(torch.linspace(-1, 0.5, log_std.numel()).reshape(log_std.shape))
    raw = torch.randn(5, 7, 6)
    action, log_prob = head.sample(raw)
    expected = Normal(raw, log_std.detach().reshape(-1).exp())
    assert action.shape == (5, 7, 2, 3)
    torch.testing.assert_close(log_prob, expected.log_prob(action.reshape(5, 7, 6)).sum(-1))
    evaluated, entropy = head.evaluate(raw, action)
    torch.testing.assert_close(evaluated, log_prob)
    torch.testing.assert_close(entropy, expected.entropy().sum(-1))
    assert torch.equal(head.mode(raw), raw.reshape(5, 7, 2, 3))


def test_an_observation_becomes_one_row():
    leaves = [Leaf(("pose",), (2, 2), torch.float64), Leaf(("room",), (), torch.int64)]
    space = spaces.Dict({"pose": spaces.Box(-9, 9, (2, 2), np.float64), "room": spaces.Discrete(3, start=5)})
    spec = EnvSpec(2, tuple(leaves), (Leaf(("action",), (), torch.int64),), space, spaces.Discrete(2))
    flatten = Flatten(spec, leaves)
    pose = torch.arange(8.0, dtype=torch.float64).reshape(1, 2, 2, 2)
    row = flatten([pose, torch.tensor([[5, 7]])])
    assert row.dtype == torch.float32
    assert row.tolist() == [[[0, 1, 2, 3, 1, 0, 0], [4, 5, 6, 7, 0, 0, 1]]]
    assert (flatten.num_outputs, flatten.is_identity) == (7, False)
    assert flatten.is_one_hot.tolist() == [False] * 4 + [True] * 3
    assert [Flatten(spec_of(spaces.Discrete(2)), [SEEN]).is_identity, Flatten(spec, leaves[:1]).is_identity] == [1, 0]
