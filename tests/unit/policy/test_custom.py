"""What `policy=custom` makes of its target."""

import functools

import pytest
import torch
from configurations import custom
from torch import nn

from collectx.errors import ConfigError
from collectx.policy.custom import build

SPEC = object()
NETWORK = nn.Linear(2, 2)


class Net(nn.Linear):
    def __init__(self, size=2, spec=None):
        super().__init__(size, size)
        self.spec = spec


class Plain:
    """A policy that is no module."""

    def __init__(self, size):
        self.size = size

    def __call__(self, observation):
        return observation


def act(observation):
    return observation


def act_with(observation, scale=1):
    return observation * scale


def make(size=3):
    return Net(size)


def make_with_spec(spec, size=3):
    return Net(size, spec)


def make_class():
    return Net


def make_plain():
    return functools.partial(Plain, 4)


def make_function(scale=2):
    return functools.partial(act_with, scale=scale)


def make_number():
    return 3


CASES = {
    "NETWORK": ({}, lambda p: torch.equal(p.weight, NETWORK.weight) and p is not NETWORK),
    "Net": ({"size": 5}, lambda p: (p.in_features, p.spec) == (5, SPEC)),
    "Plain": ({"size": 5}, lambda p: p.size == 5),
    "act": ({}, lambda p: p is act),
    "act_with": ({"scale": 4}, lambda p: isinstance(p, functools.partial) and p(3) == 12),
    "make": ({}, lambda p: p.in_features == 3),
    "make_with_spec": ({"size": 4}, lambda p: (p.in_features, p.spec) == (4, SPEC)),
    "make_class": ({}, lambda p: (p.in_features, p.spec) == (2, SPEC)),
    "make_plain": ({}, lambda p: p.size == 4),
    "make_function": ({"scale": 5}, lambda p: p(3) == 15),
}


@pytest.mark.parametrize("name", CASES)
def test_the_policy_of_a_target(name):
    kwargs, is_right = CASES[name]
    assert is_right(build(custom(f"{__name__}:{name}", **kwargs), SPEC))


def test_what_is_no_policy_is_refused():
    with pytest.raises(
        ConfigError, match=r"make_number returned a value of type int, which is not a policy\. Return a function"
    ):
        build(custom(f"{__name__}:make_number"), SPEC)
    with pytest.raises(ConfigError, match=r"policy\.kwargs\.size"):
        build(custom(f"{__name__}:Plain"), SPEC)
