"""Weights in every form: whose they are, for which workers, and what does not fit."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from collectx.library import weights
from collectx.library.weights import load_weights, unknown_models, weight_writers, weights_by_model, weights_by_worker
from collectx.policy.flat_weights import FlatWeights


@pytest.mark.parametrize(
    ("alternatives", "models", "model", "expected"),
    [
        ([], None, None, {"policy": None}),
        ([None, 3], None, None, {"policy": 3}),
        ([3], None, "env.x", {"env.x": 3}),
        ([], {"replay_buffer.y": 4}, None, {"replay_buffer.y": 4}),
        ([3], {"env.x": 4}, None, {"policy": 3, "env.x": 4}),
        ([], {"policy": None}, None, {"policy": None}),
        ([3, 4], None, None, "passed more than once"),
        ([3], {"policy": 4}, "policy", "passed more than once"),
        ([3], None, "critic", "model 'critic' is unknown. Valid names: "),
        ([], {"env.x": None}, None, "'env.x' are None"),
        ([], None, "env.x", "'env.x' are None"),
    ],
)
def test_weights_belong_to_models(alternatives, models, model, expected):
    if isinstance(expected, dict):
        assert weights_by_model(alternatives, models, model) == expected
    else:
        with pytest.raises((TypeError, ValueError), match=expected):
            weights_by_model(alternatives, models, model)
    assert unknown_models(["policy", "env.", "env", "replay_buffer.x", "a"]) == ["a", "env", "env."]


@pytest.mark.parametrize(
    ("given", "worker_ids", "expected"),
    [
        (7, None, {None: 7}),
        ({"weight": 7}, None, {None: {"weight": 7}}),
        (7, 1, {1: 7}),
        (7, np.int64(0), {0: 7}),
        (7, [0, 2], {0: 7, 2: 7}),
        ({0: 7, np.int64(2): 8}, None, {0: 7, 2: 8}),
        ({0: 7}, [0], r"worker_ids=\[0\]"),
        (7, [], "worker_ids is empty"),
        (7, 3, "worker 3 does not exist: there are 3 workers, numbered from 0"),
        (7, -1, "worker -1 does not exist"),
        ({0: 7, 3: 8}, None, "worker 3 does not exist"),
        ({0: 7, "a": 8}, None, "worker 'a' does not exist"),
    ],
)
def test_weights_belong_to_workers(given, worker_ids, expected):
    if isinstance(expected, dict):
        assert weights_by_worker(given, worker_ids, 3) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            weights_by_worker(given, worker_ids, 3)


def linear(value, inputs=2):
    module = nn.Linear(inputs, 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)
    return module


def values(module):
    return {each for parameter in module.parameters() for each in parameter.detach().flatten().tolist()}


STATE = {name: tensor.double() for name, tensor in linear(3.0).state_dict().items()}


@pytest.mark.parametrize(
    "given",
    [
        linear(3.0),
        STATE,
        TensorDict.from_module(linear(3.0)),
        {f"module.{name}": tensor for name, tensor in STATE.items()},
        {f"_orig_mod.{name}": tensor for name, tensor in STATE.items()},
        STATE | {"more": torch.ones(())},
    ],
    ids=["module", "state dict", "tensordict", "parallel", "compiled", "more"],
)
def test_weights_are_loaded_from_every_form(given):
    policy = linear(0.0)
    load_weights(policy, given)
    assert values(policy) == {3.0}
    # A policy that was wrapped takes those without the prefix.
    wrapped = nn.Sequential()
    wrapped.module = linear(0.0)
    load_weights(wrapped, given)
    assert values(wrapped) == {3.0}
    load_weights(policy, policy)


@pytest.mark.parametrize(
    ("given", "strict", "error", "words"),
    [
        ({"weight": STATE["weight"]}, False, ValueError, "the weights lack 'bias'"),
        (STATE | {"more": torch.ones(())}, True, ValueError, r"the policy has no weight named 'more'"),
        (linear(3.0, 4), False, ValueError, r"'weight' has shape \[1, 4\] in the weights, but \[1, 2\] in the policy"),
        (nn.Linear(2, 1, bias=False), False, ValueError, "the module has 1 weight, but the policy has 2"),
        (3, False, TypeError, "weights=3 must be a module"),
    ],
)
def test_weights_that_do_not_fit_are_refused(given, strict, error, words):
    policy = linear(0.0)
    with pytest.raises(error, match=words):
        load_weights(policy, given, strict)
    assert values(policy) == {0.0}
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module, so it has no weights"):
        load_weights(print, given)


class Two(nn.Module):
    """Two layers of one shape, of which the first may have a second name, `tied`; in some order."""

    def __init__(self, order, value):
        super().__init__()
        layers = {"a": linear(value), "b": linear(value + 1)}
        layers["tied"] = layers["a"]
        for name in order:
            setattr(self, name, layers[name])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("order", [["a", "b", "tied"], ["b", "a", "tied"], ["tied", "b", "a"]])
@pytest.mark.parametrize("prefix", ["", "module", "_orig_mod"])
def test_weights_of_a_module_are_matched_by_name_in_any_order(order, prefix, strict):
    policy, module = Two(["a", "b", "tied"], 0.0), Two(order, 5.0)
    load_weights(policy, nn.ModuleDict({prefix: module}) if prefix else module, strict)
    assert (values(policy.a), values(policy.b)) == ({5.0}, {6.0})


def test_weights_with_other_names_are_matched_by_position_unless_strict():
    policy, module = nn.Sequential(linear(0.0), linear(0.0)), Two(["a", "b"], 5.0)
    with pytest.raises(ValueError, match=r"the module has no weight named '0\.bias'\. .* or strict=False to match"):
        load_weights(policy, module, strict=True)
    assert values(policy) == {0.0}
    load_weights(policy, module)
    assert (values(policy[0]), values(policy[1])) == ({5.0}, {6.0})


def test_each_worker_has_a_writer_of_its_weights_and_the_policy_stays():
    policy = linear(1.0)
    writers = weight_writers(policy, {0: linear(2.0), 2: None})
    read = {}
    for worker, write in writers.items():
        flat = FlatWeights(of_worker := linear(0.0))
        buffer = torch.zeros(flat.nbytes, dtype=torch.uint8)
        write(buffer)
        flat.read(buffer)
        read[worker] = values(of_worker)
    assert read == {0: {2.0}, 2: {1.0}}
    assert values(policy) == {1.0}


class Torchrls:
    """As TorchRL's updaters: it maps weights, and has some of its own."""

    def _get_server_weights(self):
        return "own"

    def _maybe_map_weights(self, given):
        return f"mapped {given if isinstance(given, str) else type(given).__name__}"


@pytest.mark.parametrize(
    ("updater", "given", "expected"),
    [
        (None, "new", "new"),
        (None, None, None),
        (lambda: "supplied", None, "supplied"),
        (lambda: "supplied", "new", "new"),
        (Torchrls(), None, "mapped own"),
        (Torchrls(), "new", "mapped new"),
        (Torchrls(), linear(1.0), "mapped TensorDict"),
        (Torchrls, "new", "mapped new"),
        (Torchrls, None, "mapped own"),
    ],
)
def test_an_updater_supplies_or_maps_weights(updater, given, expected):
    assert weights.apply_weight_updater(updater, given) == expected
