"""`policy=multi` reads images by convolutions and all other parts as they are, in every copy of its network."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from configurations import gym
from gymnasium import spaces

from collectx import env, policy
from collectx.config.schema.policy import MultiPolicyConfig, SquashedMultiPolicyConfig
from collectx.env.observation import ObservationLeaves
from collectx.trainer.actor_critic import Critic
from collectx.trainer.sac import TwinCritic

SPEC = env.read_spec(gym(4, entry_point="worlds.errand:ErrandEnv"))
BOX = env.read_spec(gym(4, entry_point="worlds.errand:ErrandEnv", continuous=True))
CAMERA, POSITION, STEP = range(3)


def made(spec=SPEC, kind=MultiPolicyConfig, **options):
    name = "squashed_multi" if kind is SquashedMultiPolicyConfig else "multi"
    return policy.build(kind(kind=name, hidden_size=6, hidden_sizes=[5], **options), spec, 0)


def seen(*size):
    generator = np.random.default_rng(0)
    return [
        torch.from_numpy(generator.integers(0, 256, (*size, 12, 12)).astype(np.uint8)),
        torch.from_numpy(generator.normal(5, 2, (*size, 2)).astype(np.float32)),
        torch.from_numpy(generator.integers(0, 21, size)),
    ]


@pytest.mark.parametrize("size", [(), (7,), (2, 3)])
def test_a_row_contains_the_image_then_the_other_parts(size):
    module, values = made(), seen(*size)
    assert [key[-1] for key in module.observation_keys] == ["camera", "position", "step"]
    row = module.encode(values)
    assert row.dtype is torch.float32
    torch.testing.assert_close(row[..., :144].unflatten(-1, (12, 12)), values[CAMERA] / 255)
    assert torch.equal(row[..., 144:146], values[POSITION])
    assert torch.equal(row[..., 146:].argmax(-1), values[STEP])
    features = module.body[0](row)
    assert torch.equal(features[..., 6:], row[..., 144:])
    convolved = module.body[0].branches[0](values[CAMERA].reshape(-1, 1, 12, 12) / 255)
    torch.testing.assert_close(features[..., :6].reshape(-1, 6), convolved)
    assert module(values).shape == (*size, 4)


def test_every_part_changes_the_action_probabilities():
    module, values = made(), seen(3)
    before = module(values)
    for index, other in enumerate(seen(4)):
        changed = [*values]
        changed[index] = other[1:]
        assert not torch.equal(module(changed), before)


def test_vectors_are_normalised_and_images_and_numbers_are_not():
    module, values = made(normalize_observations=True), seen(2, 50)
    images = module.encode(values)[..., :144].clone()
    module.update_statistics(values)
    row = module.encode(values)
    assert torch.equal(row[..., :144], images)
    position = row[..., 144:146].flatten(0, 1)
    torch.testing.assert_close(position.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(position.std(0, correction=0), torch.ones(2))
    assert torch.equal(row[..., 146:].argmax(-1), values[STEP])
    assert module.encode.others.mean.shape == (23,)
    assert made().update_statistics is None


def test_a_critic_has_the_same_layers_with_other_weights_and_the_same_statistics():
    module = made(normalize_observations=True)
    critic = Critic(module, SPEC, 1)
    assert critic.encode is module.encode
    ours, theirs = (dict(each.body.named_parameters()) for each in (module, critic))
    assert [value.shape for value in ours.values()] == [value.shape for value in theirs.values()]
    assert not any(torch.equal(ours[name], theirs[name]) for name in ours if name.endswith("weight"))
    assert critic(seen(7)).shape == (7,)


def test_the_critics_of_sac_read_an_action_beside_the_parts_and_differ():
    module, values = made(BOX, SquashedMultiPolicyConfig, normalize_observations=True), seen(7)
    critic = TwinCritic(module.body, module.encode.num_outputs, BOX, 1)
    action, log_prob = module.rsample(values)
    assert action.shape == (7, 2)
    features = module.encode(values)
    before = critic(features, action)
    assert before.shape == (2, 7)
    assert not torch.equal(critic(features, -action), before)
    first, second = (dict(each.named_parameters()) for each in critic.networks)
    assert "0.branches.0.0.weight" in first
    assert not any(torch.equal(first[name], second[name]) for name in first if name.endswith("weight"))
    assert not torch.equal(first["0.branches.0.0.weight"], module.body[0].branches[0][0].weight)
    (before.sum() + log_prob.sum()).backward()
    assert all(each.grad is not None for each in (*critic.parameters(), *module.parameters()))


@pytest.mark.parametrize("side", [1, 2, 5, 7, 9, 10, 12, 35, 36, 84])
def test_the_usual_convolutions_fit_images_of_any_size(side):
    space = spaces.Dict(image=spaces.Box(0, 1, (side, side + 3, 1)), vector=spaces.Box(0, 1, (2,)))
    leaves = ObservationLeaves(space).leaves
    module = made(replace(SPEC, observation=leaves, inputs=leaves, observation_space=space))
    layers = [layer for layer in module.body[0].branches[0] if isinstance(layer, torch.nn.Conv2d)]
    largest = max(layer.kernel_size[0] for layer in layers)
    assert (len(layers), largest) == (3, 8 if side >= 36 else min(side, 3))
    assert module([torch.zeros(2, side, side + 3, 1), torch.zeros(2, 2)]).shape == (2, 4)
