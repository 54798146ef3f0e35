"""The built-in policies for many spaces: networks, keys, actions, and refusals, as whole tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from collectx import policy as policies
from collectx.batch import Leaf
from collectx.config.schema.policy import CnnPolicyConfig, MlpPolicyConfig, MultiPolicyConfig
from collectx.env.base import EnvSpec
from collectx.env.spaces import SpaceLeaves
from collectx.errors import ConfigError
from collectx.policy import ExplorationType, is_random_policy, make_actor
from collectx.policy.multi import Branches

CPU = torch.device("cpu")


def box(*shape, dtype="float32"):
    return spaces.Box(0, 9, shape, dtype)


def spec(observation, action=None, **fields):
    action = spaces.Discrete(3) if action is None else action
    seen = SpaceLeaves(observation, () if isinstance(observation, spaces.Dict) else ("observation",), True).leaves
    acted = SpaceLeaves(action, ("action",)).leaves if type(action) is not spaces.Space else ()
    leaves = acted or (Leaf(("action",), action.shape, torch.int64),)
    return EnvSpec(2, seen, leaves, observation, action, **fields)


def mlp(kind="mlp", sizes=(4,), **fields):
    return MlpPolicyConfig(kind=kind, hidden_sizes=[*sizes], **fields)


def cnn(kind="cnn", channels=(2,), kernels=(3,), strides=(2,), scale=2.0, **fields):
    sizes = {"channels": [*channels], "kernel_sizes": [*kernels], "strides": [*strides]}
    return CnnPolicyConfig(kind=kind, hidden_size=5, scale=scale, **sizes, **fields)


def multi(kind="multi", sizes=(4,), **fields):
    return MultiPolicyConfig(kind=kind, hidden_sizes=[*sizes], hidden_size=5, **fields)


PARTS = spaces.Dict(pose=box(2, 2, dtype="float64"), room=spaces.Discrete(3, start=5), gear=spaces.Discrete(2))
INFO = Leaf(("info", "speed"), (2,), torch.float32)
MASK = spaces.Dict(action_mask=spaces.MultiBinary(3), x=box(2))
SEEN = spaces.Dict(
    arm=spaces.Dict(camera=box(11, 9, 3, dtype="uint8"), pose=box(2, 2)),
    room=spaces.Discrete(3, start=5),
    view=box(4, 6),
)
CASES = {
    "a row": (mlp(), spec(box(3))),
    "a row of doubles": (mlp(), spec(box(3, dtype="float64"))),
    "no row": (mlp(), spec(box())),
    "a table": (mlp(), spec(box(2, 3))),
    "parts": (mlp(), spec(PARTS)),
    "parts, normalised": (mlp(normalize_observations=True), spec(PARTS)),
    "a number": (mlp(), spec(spaces.Discrete(4, start=1))),
    "a number, normalised": (mlp(normalize_observations=True), spec(spaces.Discrete(4))),
    "nothing": (mlp(), spec(spaces.Dict())),
    "a Tuple": (mlp(), spec(spaces.Tuple([spaces.Discrete(2), box(2)]))),
    "a kept info": (mlp(), replace(spec(box(3)), observation=(*spec(box(3)).observation, INFO))),
    "no hidden layer": (mlp(sizes=()), spec(box(3))),
    "two hidden layers": (mlp(sizes=(4, 6), activation="relu"), spec(box(3))),
    "numbers from 2": (mlp(), spec(box(3), spaces.Discrete(3, start=2))),
    "several numbers": (mlp(), spec(box(3), spaces.MultiDiscrete([2, 4], start=[0, 1]))),
    "a table of numbers": (mlp(), spec(box(3), spaces.MultiDiscrete([[2, 4], [3, 1]]))),
    "bits": (mlp(), spec(box(3), spaces.MultiBinary(2))),
    "floats": (mlp(), spec(box(3), box(2))),
    "a table of doubles": (mlp(), spec(box(3), box(2, 2, dtype="float64"))),
    "one float": (mlp(), spec(box(3), box())),
    "integers of a Box": (mlp(), spec(box(3), box(2, dtype="int64"))),
    "two actions": (mlp(), spec(box(3), spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)))),
    "one-hot": (mlp(), spec(box(3), spaces.Space((4,), "int64"))),
    "agents": (
        mlp(),
        EnvSpec(2, spec(box(3)).observation, (Leaf(("agents", "action"), (2,), torch.int64),), box(3), spaces.Dict()),
    ),
    "a mask": (mlp(), spec(MASK)),
    "a mask alone": (mlp(), spec(spaces.Dict(action_mask=spaces.MultiBinary(3)))),
    "a mask that does not fit": (mlp(), spec(MASK, spaces.Discrete(4))),
    "values": (mlp("q_mlp"), spec(box(3), spaces.Discrete(3, start=2))),
    "values of floats": (mlp("q_mlp"), spec(box(3), box(2))),
    "values of legal numbers": (mlp("q_mlp"), spec(MASK)),
    "an image": (cnn(), spec(box(5, 7, dtype="uint8"))),
    "channels first": (cnn(), spec(box(3, 5, 7, dtype="uint8"))),
    "channels last": (cnn(), spec(box(5, 7, 3, dtype="uint8"))),
    "as many channels": (cnn(), spec(box(3, 5, 3, dtype="uint8"))),
    "a stack": (cnn(), spec(box(2, 5, 7, 3, dtype="uint8"))),
    "a small image": (cnn(), spec(box(3, 3, 3, dtype="uint8"))),
    "an image that is too low": (cnn(), spec(box(2, 7, dtype="uint8"))),
    "an image that is too narrow": (cnn(), spec(box(7, 2, dtype="uint8"))),
    "two convolutions": (cnn(channels=(2, 4), kernels=(3, 2), strides=(2, 1)), spec(box(9, 6, dtype="uint8"))),
    "two convolutions, too many": (
        cnn(channels=(2, 4), kernels=(3, 3), strides=(2, 1)),
        spec(box(9, 6, dtype="uint8")),
    ),
    "a row as an image": (cnn(), spec(box(3))),
    "a row as an image, for values": (cnn("q_cnn"), spec(box(3))),
    "two images": (cnn(), spec(spaces.Dict(a=box(5, 7), b=box(5, 7)))),
    "no image": (cnn(), spec(spaces.Dict())),
    "an image for values": (cnn("q_cnn"), spec(box(5, 7, dtype="uint8"))),
    "an image for floats": (cnn("q_cnn"), spec(box(5, 7, dtype="uint8"), box(2))),
    "an image among parts": (multi(), spec(SEEN)),
    "an image among parts, normalised": (multi(normalize_observations=True), spec(SEEN)),
    "two images among parts": (multi(images=["arm.camera", "view"], scale=3.0), spec(SEEN)),
    "no image among parts": (multi(images=[]), spec(SEEN)),
    "an image that is a row": (multi(images=["view", "room"]), spec(SEEN)),
    "an image that does not exist": (multi(images=["camera"]), spec(SEEN)),
    "an image alone": (multi(sizes=()), spec(box(40, 36, dtype="uint8"))),
    "an image alone, normalised": (multi(normalize_observations=True), spec(box(5, 7, dtype="uint8"))),
    "an image and a number, normalised": (
        multi(normalize_observations=True),
        spec(spaces.Dict(camera=box(5, 7, dtype="uint8"), room=spaces.Discrete(3, start=5))),
    ),
    "an image of one number": (multi(), spec(box(1, 1, 1))),
    "an image that is too small among parts": (multi(channels=[2], kernel_sizes=[12], strides=[1]), spec(SEEN)),
    "parts without an image": (multi(), spec(PARTS)),
    "parts that are nothing": (multi(), spec(spaces.Dict())),
    "an image among parts for values": (multi("q_multi"), spec(SEEN)),
    "an image among parts and a mask": (multi(), spec(spaces.Dict(camera=box(5, 7, dtype="uint8"), **MASK.spaces))),
    "images as a Tuple": (multi(), spec(spaces.Tuple([box(5, 7, dtype="uint8"), box(2)]))),
}


def layer(module):
    if isinstance(module, nn.Conv2d):
        return f"Conv2d {[*module.weight.shape]} by {[*module.stride]}"
    if isinstance(module, Branches):
        return ["; ".join(map(layer, branch)) for branch in module.branches]
    return f"Linear {[*module.weight.shape]}" if isinstance(module, nn.Linear) else type(module).__name__


def described(cfg, env_spec):
    """Describes the network and its likeliest actions with weights 1, 2, ... of its last layer, or the error."""
    try:
        policy = policies.build(cfg, env_spec, 0)
        actor = make_actor(policy, env_spec, CPU, ExplorationType.RANDOM)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    best = make_actor(policy, env_spec, CPU, ExplorationType.MODE)
    for parameter in policy.parameters():
        parameter.data.fill_(0.25)
    bias = policy.out.bias.data
    bias.copy_(torch.arange(len(bias)) * 7 % 5)
    seen = []
    for leaf in env_spec.observation:
        size = max(1, int(torch.tensor(leaf.shape).prod())) * 2
        value = (torch.arange(size) % 3).reshape(2, *leaf.shape).to(leaf.dtype)
        starts = {("room",): 5, ("observation",): getattr(env_spec.observation_space, "start", 0)}
        seen.append(value + starts.get(leaf.key, 0) if leaf.shape == () else value)
    with torch.no_grad():
        encoded, mode, drawn = policy.encode(seen), best.act(seen), actor.act(seen)
        inputs = [seen[[leaf.key for leaf in env_spec.observation].index(key)] for key in policy.observation_keys]
        raw = policy(inputs)
        log_prob, entropy = policy.evaluate(inputs, drawn[0])
    torch.testing.assert_close(log_prob, drawn[1])
    assert entropy.shape == (2,)
    assert best.leaves == actor.leaves[:1] == env_spec.action
    assert drawn[0].shape == mode[0].shape == (2, *env_spec.action[0].shape)
    assert drawn[0].dtype is mode[0].dtype is env_spec.action[0].dtype
    if not isinstance(env_spec.action_space, spaces.Box):
        assert all(map(env_spec.action_space.contains, (*drawn[0].numpy(), *mode[0].numpy())))
    return {
        "keys": [".".join(key) for key in policy.observation_keys],
        "encoder": f"{type(policy.encode).__name__} -> {[*encoded.shape]}",
        "layers": [layer(each) for each in (*policy.body, policy.out)],
        "actor": f"{type(actor).__name__}: " + ", ".join(f"{leaf.key[0]} {[*leaf.shape]}" for leaf in actor.leaves),
        "raw": [round(each, 3) for each in raw[0].clamp(min=-1).tolist()],
        "mode": mode[0].mul(1000).round().div(1000).tolist() if mode[0].is_floating_point() else mode[0].tolist(),
        **({} if policy.legal is None else {"legal": policy.legal.key}),
    }


def test_networks(expected):
    expected("networks", {name: described(*case) for name, case in CASES.items()})


@pytest.mark.parametrize("kind", ["cnn", "q_cnn"])
@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (spaces.Box(0, 255, (3, 3), np.uint8), 255),
        (spaces.Box(0, 255, (3, 3), np.float32), 255),
        (spaces.Box(0, 1, (3, 3), np.float32), 1),
        (spaces.Box(-1, 1, (3, 3), np.float64), 1),
        (spaces.Box(-4, 2, (3, 3), np.int16), 4),
        (spaces.Box(0, 65535, (3, 3), np.uint16), 65535),
        (spaces.Box(-np.inf, np.inf, (3, 3), np.float32), 1),
        (spaces.Box(0, 0, (3, 3), np.float32), 1),
        (spaces.MultiBinary((3, 3)), 1),
        (spaces.MultiDiscrete([[3] * 3] * 3), 2),
        (spaces.Dict(image=spaces.Box(0, 7, (3, 3), np.uint8)), 7),
    ],
)
def test_images_are_divided_by_the_largest_value_of_their_space(kind, space, scale):
    image = torch.ones(2, 3, 3)
    for config, divisor in ((cnn(kind, scale=None), scale), (cnn(kind, scale=9.0), 9)):
        policy = policies.build(config, spec(space), 0)
        torch.testing.assert_close(policy.encode([image])[:, 0], image / divisor)


@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 5), (4, 5, 3), (2, 4, 5, 3)])
def test_centred_images_have_a_mean_of_zero_in_each_channel(shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    image = torch.randint(0, 256, (6, *shape), dtype=torch.uint8)
    plain, centred = (policies.build(cnn(center_images=each), spec(space), 0).encode([image]) for each in (False, True))
    torch.testing.assert_close(centred, plain - plain.mean((2, 3), keepdim=True))
    assert plain.mean((2, 3)).min() > 0.1
    brighter = policies.build(cnn(center_images=True), spec(space), 0).encode([image // 2 + 100])
    darker = policies.build(cnn(center_images=True), spec(space), 0).encode([image // 2])
    torch.testing.assert_close(brighter, darker)


def test_weights_follow_from_the_seed_alone():
    env_spec = spec(box(3))
    torch.manual_seed(3)
    torch.set_num_threads(1)
    before = torch.get_rng_state()
    first, same, other = (policies.build(mlp(), env_spec, seed).out.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


class RandomPolicy:
    """A class with the name of TorchRL's."""


def test_a_random_policy_is_known_by_its_class():
    assert [is_random_policy(each) for each in (RandomPolicy(), RandomPolicy, None)] == [True, False, False]


@pytest.mark.parametrize("value", [4, 8])
def test_a_number_outside_of_its_discrete_space_is_named(value):
    from collectx.errors import DataError
    from collectx.policy.stochastic import one_hot

    assert one_hot(torch.tensor([5, 7]), 3, 5).tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(DataError, match=rf"observation {value}, which is not in its space Discrete\(3, start=5\)"):
        one_hot(torch.tensor([5, value]), 3, 5)


def test_another_default_dtype_is_named_before_the_first_batch():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"policy=mlp computes in float32, but .* is torch\.float64: your code"):
            policies.build(mlp(), spec(box(3)), 0)
    finally:
        torch.set_default_dtype(torch.float32)
