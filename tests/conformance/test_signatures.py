"""Every public name, keyword and method of TorchRL's collectors is there, or is refused with a reason. Theirs are in
golden/names.json, golden/signatures.json and golden/attributes.json, so that TorchRL itself is not needed."""

import inspect
import json
import re

import golden
import pytest
from user_code.cartpoles import cartpole

import collectx
from collectx.library.refused import REFUSED_ATTRIBUTES, REFUSED_IN_ONE_PROCESS, REFUSED_NAMES

NAMES = json.loads((golden.FOLDER / "names.json").read_text())
THEIRS = json.loads((golden.FOLDER / "signatures.json").read_text())
ATTRIBUTES = json.loads((golden.FOLDER / "attributes.json").read_text())
# These have other values, or the policy that was passed; see docs/reference/torchrl-differences.md. Of the last three,
# two are False in place of None, and None is any free port.
DIFFERENT = {"num_threads", "policy", "policy_version", "no_cuda_sync", "trust_policy", "tcp_port"}
# Theirs raises, as a property; ours is the method of all collectors.
PROPERTIES = {"AsyncBatchedCollector": {"rollout"}}


def parameters(function):
    return set(inspect.signature(function).parameters)


def public(name):
    return {method for method in dir(getattr(collectx, name)) if not method.startswith("_")}


def not_taken(name):
    """Keywords of TorchRL's class, and of the one that it passes its `**kwargs` to, that ours has not."""
    theirs = {*THEIRS[name]["keywords"], *(THEIRS["MultiCollector"]["keywords"] if name.startswith("Multi") else ())}
    return theirs - parameters(getattr(collectx, name).__init__)


@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_of_theirs_is_exported_or_refused_with_a_reason(module):
    missing = {name for name in NAMES[module] if not hasattr(collectx, name)}
    assert missing == REFUSED_NAMES.keys() & set(NAMES[module])
    for name in missing:
        with pytest.raises(AttributeError, match=rf"no attribute {name!r}\. {re.escape(REFUSED_NAMES[name][:15])}"):
            getattr(collectx, name)


@pytest.mark.parametrize("name", THEIRS)
def test_keywords_and_methods_are_taken_or_refused(name):
    assert not not_taken(name)
    methods = THEIRS[name]["methods"]
    assert set(methods) - public(name) <= {*REFUSED_ATTRIBUTES, *REFUSED_IN_ONE_PROCESS}
    assert not set(REFUSED_ATTRIBUTES) & public(name)
    documented = getattr(collectx, name).__init__.__doc__
    assert all(keyword in documented for keyword in parameters(getattr(collectx, name)) - {"sync"})
    both = set(methods) & public(name)
    assert len(both) >= 15
    for method in both - PROPERTIES.get(name, set()):
        function = getattr(getattr(collectx, name), method)
        assert callable(function) == (methods[method] is not None), method
        assert not set(methods[method] or ()) - (parameters(function) if callable(function) else set()), method


def test_a_keyword_has_the_default_and_the_text_of_its_option():
    parameters = inspect.signature(collectx.RayCollector).parameters
    assert [parameters[name].default for name in ("num_slots", "queue_timeout_s")] == [2, 180.0]
    text = " ".join(collectx.RayCollector.__init__.__doc__.split())
    assert "worker_timeout_s: maximum seconds, above 0, for which a worker may make no progress" in text
    assert "if on_worker_failure drops lost workers: how many" in text
    assert "None: the run starts with all workers" in text


def test_what_is_ignored_has_the_default_of_theirs():
    """So that a script that passes it as it is says nothing new."""
    theirs = {"env_exchange": "auto", "transition_chunk_size": "auto", "weight_sync_model_id": "policy"}
    theirs |= {"policy_version_key": "policy_version", "no_cuda_sync": False, "use_buffers": None}
    theirs |= {"verbose": False, "use_env_creator": False}
    found = {}
    for name in THEIRS:
        documented = getattr(collectx, name).__init__.__doc__
        for keyword, parameter in inspect.signature(getattr(collectx, name)).parameters.items():
            if f"\n    {keyword}: ignored" in inspect.cleandoc(documented):
                found.setdefault(keyword, set()).add(parameter.default)
    assert found == {keyword: {default} for keyword, default in theirs.items()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in golden.LOCAL else pytest.mark.nightly) for name in ATTRIBUTES]
)
def test_attributes_have_the_values_of_theirs_or_are_refused(name):
    theirs = {each: value for each, value in ATTRIBUTES[name].items() if each not in REFUSED_ATTRIBUTES}
    make = cartpole if name == "Collector" else [cartpole] * 2
    with getattr(collectx, name)(make, None, **golden.SIZES, **golden.INSTANCES[name]) as collector:
        values = {each: golden.plain(getattr(collector, each)) for each in theirs}
        assert set(values) <= set(dir(collector))
    plain = {each: value for each, value in theirs.items() if value is not None and each not in DIFFERENT}
    assert {each: values[each] for each in plain} == plain


def test_exploration_types_are_theirs():
    from tensordict.nn import InteractionType

    with collectx.Collector(cartpole, frames_per_batch=4) as collector:
        assert collector.exploration_type is InteractionType.RANDOM  # which TorchRL calls ExplorationType


def test_a_refused_method_is_refused_with_its_reason():
    with collectx.Collector(cartpole, frames_per_batch=4, compact_obs=False) as collector:
        for name, why in REFUSED_ATTRIBUTES.items():
            with pytest.raises(AttributeError, match=rf"no attribute {name!r}\. {re.escape(why[:20])}"):
                getattr(collector, name)
        with pytest.raises(AttributeError, match=r"no attribute 'no_such'$"):
            collector.no_such  # noqa: B018
