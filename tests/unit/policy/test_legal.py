"""Policies of envs with masks of legal actions, against torch's distributions over the legal actions alone."""

from dataclasses import replace

import pytest
import torch
from configurations import gym, mlp
from torch.distributions import Categorical
from worlds.masked import MaskedEnv

from collectx import env, policy
from collectx.config.schema.policy import CnnPolicyConfig, MlpPolicyConfig
from collectx.env.gym import GymEnv
from collectx.policy.exploration import ExplorationType

CPU = torch.device("cpu")
CNN = {"channels": [4], "kernel_sizes": [8], "strides": [4], "hidden_size": 8, "scale": 255.0}
KINDS = {
    "mlp": mlp(),
    "q_mlp": MlpPolicyConfig(kind="q_mlp", hidden_sizes=[8], activation="tanh"),
    "cnn": CnnPolicyConfig(kind="cnn", **CNN),
    "q_cnn": CnnPolicyConfig(kind="q_cnn", **CNN),
}


class Case:
    """A policy for `num_envs` envs, observations, and masks at random."""

    def __init__(self, kind, num_envs=200, **options):
        group = GymEnv([MaskedEnv(**options)], [{"action_mask": ["int8", 5]}] if options.get("where") == "info" else [])
        self.spec = replace(group.spec, num_envs=num_envs)
        self.module = policy.build(KINDS[kind], self.spec, 0)
        torch.manual_seed(0)
        self.values = {leaf.key: torch.rand(num_envs, *leaf.shape).to(leaf.dtype) for leaf in self.spec.observation}
        self.counts = options.get("nvec") or [5]
        # Each choice has a legal value.
        masks = [torch.rand(num_envs, n) < 0.4 for n in self.counts]
        self.set_masks([mask.scatter(-1, torch.randint(mask.shape[1], (num_envs, 1)), True) for mask in masks])

    def set_masks(self, masks):
        self.masks = masks
        self.values[self.module.legal.key] = torch.cat(masks, -1).to(torch.int8)

    def act(self, kind=ExplorationType.RANDOM):
        """Returns the indices of the actions, `[E, choices]`, and the other outputs."""
        actor = policy.make_actor(self.module, self.spec, CPU, kind)
        with torch.inference_mode():
            action, *others = actor.act([self.values[leaf.key] for leaf in self.spec.observation])
        self.action = action.clone()
        index = action[:, None] - 2 if self.counts == [5] else action
        assert all(mask.gather(-1, i[:, None]).all() for mask, i in zip(self.masks, index.unbind(-1), strict=True))
        return index.clone(), *others

    @property
    def inputs(self):
        """Returns what a trainer passes to the policy."""
        return [self.values[key] for key in self.module.observation_keys]


@pytest.mark.parametrize("options", [{}, {"where": "info"}, {"nvec": [3, 2, 4]}, {"nvec": [3, 3]}], ids=str)
def test_probabilities_are_those_over_legal_actions(options):
    case = Case("mlp", **options)
    index, log_prob = case.act()
    module, each = case.module, []
    raw = module.out(module.body(module.encode(case.inputs))).unflatten(-1, (len(case.counts), -1))
    for row, mask in zip(raw.unbind(-2), case.masks, strict=True):
        weight = row[:, : mask.shape[1]].exp() * mask
        each.append(Categorical(probs=weight / weight.sum(-1, keepdim=True)))
    expected = sum(one.log_prob(chosen) for one, chosen in zip(each, index.unbind(-1), strict=True))
    entropy = sum(one.entropy() for one in each)
    torch.testing.assert_close(log_prob, expected.detach())
    found = module.evaluate(case.inputs, case.action)
    torch.testing.assert_close(found, (expected, entropy), atol=1e-5, rtol=1e-5)
    sum(value.sum() for value in found).backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
    case.act(ExplorationType.DETERMINISTIC)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_chooses_among_legal_actions(epsilon):
    case = Case("q_mlp", num_envs=3000)
    case.values = {key: value[:1].expand(value.shape) for key, value in case.values.items()}
    legal = torch.tensor([True, False, True, True, False])
    case.set_masks([legal.expand(3000, 5)])
    case.module.epsilon.fill_(epsilon)
    index, log_prob = case.act()
    expected = legal * epsilon / 3
    expected[case.module(case.inputs)[0].argmax()] += 1 - epsilon
    torch.testing.assert_close(torch.bincount(index[:, 0], minlength=5) / 3000, expected, atol=0.04, rtol=0)
    torch.testing.assert_close(log_prob, expected[index[:, 0]].log())
    found, entropy = case.module.evaluate(case.inputs, case.action)
    torch.testing.assert_close(found, log_prob)
    torch.testing.assert_close(entropy[0], Categorical(probs=expected).entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["cnn", "q_cnn"])
def test_a_mask_beside_an_image_is_no_second_input(kind):
    Case(kind, image=True).act()


def test_envs_without_masks_have_the_actors_that_they_had():
    plain = env.read_spec(gym(2))
    module = policy.build(mlp(), plain, 0)
    kinds = [type(policy.make_actor(each, plain, CPU, ExplorationType.RANDOM)).__name__ for each in (module, None)]
    assert kinds == ["StochasticActor", "RandomActor"]
    assert type(policy.build(KINDS["q_mlp"], plain, 0).head).__name__ == "EpsilonGreedy"
    # Weights can be exchanged.
    assert Case("mlp", nvec=[3, 2]).module.state_dict().keys() == module.state_dict().keys()
