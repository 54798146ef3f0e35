"""The plan of a call says what is called with which keys, and what is written to a batch."""

import dataclasses

import pytest
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.policy import ExplorationType
from collectx.policy.call_plan import _arguments
from collectx.policy.user_actor import UserActor

SEEN = (Leaf(("observation",), (5,), torch.float32),)
SPEC = EnvSpec(3, SEEN, (Leaf(("action",), (), torch.int64),), spaces.Box(-1, 1, (5,)), spaces.Discrete(4))


def greedy(logits):
    return logits.argmax(-1)


def by_arguments(observation):
    return greedy(observation[..., :4]), observation.sum(-1)


def by_tensordict(td):
    return td.set("action", greedy(td["observation"][..., :4]))


MODULES = TensorDictSequential(
    TensorDictModule(nn.Linear(5, 4), ["observation"], ["logits"]), TensorDictModule(greedy, ["logits"], ["action"])
)
ACTION = {"action": "[] torch.int64"}


def row(calls, form, reads, writes):
    return {"calls": calls, "with": form, "reads": reads, "writes": writes}


@pytest.mark.parametrize(
    ("policy", "calls", "outputs"),
    [
        (
            MODULES,
            [row("Linear", "tensors", "observation", "logits"), row("greedy", "tensors", "logits", "action")],
            {**ACTION, "logits": "[4] torch.float32"},
        ),
        (
            by_arguments,
            [row("by_arguments", "arguments", "observation", "action, output1")],
            {**ACTION, "output1": "[] torch.float32"},
        ),
        (by_tensordict, [row("by_tensordict", "a TensorDict", "observation", "action")], ACTION),
    ],
    ids=["modules", "arguments", "tensordict"],
)
@pytest.mark.parametrize("is_single", [False, True])
def test_a_plan_describes_its_calls(policy, calls, outputs, is_single):
    spec = dataclasses.replace(SPEC, num_envs=1, is_single=True) if is_single else SPEC
    actor = UserActor(policy, spec, torch.device("cpu"), ExplorationType.RANDOM)
    described = {"batch_size": () if is_single else None, "calls": calls, "outputs": outputs}
    assert actor.plan.describe() == described


POSE, PIXELS, SPEED = (("pose",), ("pixels", "left"), ("pixels", "right"))


@pytest.mark.parametrize(
    ("keys", "is_dict", "policy", "expected"),
    [
        ([("observation",)], False, lambda observation: 0, [("observation",)]),
        ([("observation",)], False, lambda x: 0, [("observation",)]),
        ([POSE, PIXELS, SPEED], True, lambda pixels, pose: 0, [{("left",): PIXELS, ("right",): SPEED}, POSE]),
        ([POSE, PIXELS], True, lambda x: 0, [{POSE: POSE, PIXELS: PIXELS}]),
        ([POSE, PIXELS], True, lambda x, y: 0, [POSE, PIXELS]),
        (
            [("observation", "a"), ("observation", "b")],
            False,
            lambda x: 0,
            [{("a",): ("observation", "a"), ("b",): ("observation", "b")}],
        ),
        ([POSE], True, lambda x, scale=2: 0, [POSE]),
        ([POSE, PIXELS], True, lambda x=1, y=2: 0, [{POSE: POSE, PIXELS: PIXELS}]),
        ([POSE, PIXELS], True, lambda *, x: 0, [POSE, PIXELS]),
        ([POSE, PIXELS], True, 3, [POSE, PIXELS]),  # what has no signature
    ],
)
def test_what_each_argument_of_a_policy_is(keys, is_dict, policy, expected):
    space = spaces.Dict() if is_dict else spaces.Tuple([])
    leaves = tuple(Leaf(key, (), torch.float32) for key in keys)
    assert _arguments(policy, EnvSpec(1, leaves, SPEC.action, space, SPEC.action_space)) == expected
