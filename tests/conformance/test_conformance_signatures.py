"""Every keyword and every public method of TorchRL's collectors is there, or is refused with a reason."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import gymnasium
import torchrl.collectors
import torchrl.collectors.distributed

import collectx
from collectx.library import attributes
from collectx.library.keywords import REFUSED

PEERS = {
    name: getattr(module, name)
    for module in (torchrl.collectors, torchrl.collectors.distributed)
    for name in dir(module)
    if name.endswith("Collector") and hasattr(collectx, name)
}
# Passed on: they are named in the signature of the class above.
PASSED_ON = {"self", "args", "kwargs"}

# What a class of ours cannot do without.
SAID = {"MultiCollector": {"sync": True}}


def names(cls):
    return set(inspect.signature(cls.__init__).parameters) - PASSED_ON


def wanted(name):
    """The keywords of TorchRL's class, and of those that it hands its `**kwargs` to."""
    found = names(PEERS[name])
    return found | names(PEERS["MultiCollector"]) if name.startswith("Multi") else found


def test_all_classes_are_looked_at():
    assert {"Collector", "MultiSyncCollector", "MultiAsyncCollector", "DistributedCollector"} <= set(PEERS)


@pytest.mark.parametrize("name", PEERS)
def test_every_keyword_is_taken_or_refused_with_a_reason(name):
    assert wanted(name) - names(getattr(collectx, name)) <= set(REFUSED)


def test_what_is_refused_is_not_taken_after_all():
    for refused in REFUSED:
        assert any(refused in wanted(name) - names(getattr(collectx, name)) for name in PEERS), refused


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_why(name):
    def never():
        raise AssertionError("an env was made")

    kind = next(kind for kind in PEERS if name in wanted(kind) - names(getattr(collectx, kind)))
    with pytest.raises(TypeError, match=rf"'{name}' \(of TorchRL's, not taken here: \w+"):
        getattr(collectx, kind)(never if kind == "Collector" else [never], **{name: 1, **SAID.get(kind, {})})


def test_what_is_refused_may_be_said_not_to_be_wanted():
    def create():
        return gymnasium.make("CartPole-v1")

    with collectx.Collector(create, frames_per_batch=4, backend=None, compact_obs=False) as collector:
        assert collector.next().numel() == 4


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def parameters(function):
    return set(inspect.signature(function).parameters) - PASSED_ON


@pytest.mark.parametrize("name", PEERS)
def test_every_method_and_property_is_there_or_refused_with_a_reason(name):
    assert public(PEERS[name]) - public(getattr(collectx, name)) <= set(attributes.REFUSED)


@pytest.mark.parametrize("name", PEERS)
def test_every_method_takes_the_parameters_that_it_takes_in_torchrl(name):
    theirs, ours = PEERS[name], getattr(collectx, name)
    missing = {}
    for method in public(theirs) & public(ours):
        function, own = getattr(theirs, method), getattr(ours, method)
        assert callable(function) == callable(own), method
        if callable(function):
            missing[method] = parameters(function) - parameters(own)
    assert len(missing) >= 15
    assert not {method: names for method, names in missing.items() if names}


def test_what_is_refused_is_a_method_of_torchrl_and_not_there_after_all():
    for refused in attributes.REFUSED:
        assert any(refused in public(PEERS[name]) for name in PEERS), refused
        assert not any(refused in public(getattr(collectx, name)) for name in PEERS), refused


def test_a_refused_method_tells_why():
    with collectx.Collector(lambda: gymnasium.make("CartPole-v1"), frames_per_batch=4) as collector:
        for refused, why in attributes.REFUSED.items():
            with pytest.raises(AttributeError, match=f"{refused}.*of TorchRL's, not here: {why[:20]}"):
                getattr(collector, refused)
        with pytest.raises(AttributeError, match=r"no attribute 'no_such'$"):
            getattr(collector, "no_such")  # noqa: B009, as a statement it would look useless
