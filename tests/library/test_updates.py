"""All the forms in which weights are given to `update_policy_weights_`, and what weight updaters give."""

from __future__ import annotations

import time

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from collectx import Collector, DistributedCollector, MultiAsyncCollector, MultiSyncCollector
from collectx.errors import ConfigError
from collectx.library.updates import given_weights, load_weights, updated_weights

torch.set_num_threads(1)


class Constant(nn.Module):
    """Acts by its weight, 0 or 1."""

    def __init__(self, action=0.0):
        super().__init__()
        self.action = nn.Parameter(torch.tensor(action))

    def forward(self, observation):
        return self.action.long().expand(observation.shape[0])


def cartpole():
    return gymnasium.make("CartPole-v1")


def weights_of(module):
    return TensorDict.from_module(module).data


def given(
    positional=None, weights=None, policy_weights=None, policy=None, weights_dict=None, model_id=None, worker_ids=None
):
    return given_weights((positional, weights, policy_weights, policy), weights_dict, model_id, worker_ids)


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        (3, {}),
        (None, {"weights": 3}),
        (None, {"policy_weights": 3}),
        (None, {"policy": 3, "model_id": "policy"}),
        (None, {"weights_dict": {"policy": 3}}),
    ],
)
def test_the_weights_that_were_given(positional, named):
    assert given(positional, **named) == 3


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        (3, {"weights": 3}, "more than once"),
        (None, {"weights": 3, "model_id": "critic"}, "critic: the only model here is 'policy'"),
        (None, {"weights_dict": {"policy": 3, "critic": 4}}, "critic: the only model here is 'policy'"),
        (3, {"worker_ids": [0]}, "all workers take the same weights"),
        ({0: 3, 1: 4}, {}, "all workers act with the same weights"),
    ],
)
def test_what_cannot_be_is_refused(positional, named, message):
    with pytest.raises((TypeError, ValueError), match=message):
        given(positional, **named)


def torchrl_updater(mapped=False):
    collectors = pytest.importorskip("torchrl.collectors")

    class Mapped(collectors.VanillaWeightUpdater):
        def _maybe_map_weights(self, weights):
            return weights.apply(lambda value: 1 - value)

    kind = Mapped if mapped else collectors.VanillaWeightUpdater
    return kind(weight_getter=lambda: weights_of(Constant(1.0)), policy_weights=weights_of(Constant()))


@pytest.mark.parametrize("form", ["itself", "constructor", "callable"])
def test_a_weight_updater_gives_the_weights(form):
    if form == "callable":
        updater = lambda: weights_of(Constant(1.0))  # noqa: E731
    else:
        updater = torchrl_updater() if form == "itself" else torchrl_updater
    assert float(updated_weights(updater, None)["action"]) == 1.0
    assert float(updated_weights(updater, weights_of(Constant(3.0)))["action"]) == 3.0


def test_torchrls_updater_maps_what_was_given():
    assert float(updated_weights(torchrl_updater(mapped=True), Constant(1.0))["action"]) == 0.0


@pytest.mark.parametrize("form", ["weights", "policy", "weights_dict", "receive", "updater"])
def test_weights_reach_the_workers_in_every_form(form):
    keywords = {"weight_updater": torchrl_updater()} if form == "updater" else {}
    with MultiSyncCollector([cartpole], Constant(), frames_per_batch=10, **keywords) as collector:
        assert collector.next()["action"].unique().tolist() == [0]
        newest = Constant(1.0)
        if form == "updater":
            collector.update_policy_weights_()
        elif form == "receive":
            collector.receive_weights(newest)
        else:
            given = {"weights": weights_of(newest), "policy": newest, "weights_dict": {"policy": newest.state_dict()}}
            collector.update_policy_weights_(**{form: given[form]})
        assert collector.next()["action"].unique().tolist() == [1]


@pytest.mark.parametrize("form", ["module", "state_dict", "tensordict"])
def test_weights_of_another_shape_are_refused(form):
    wide = Constant()
    wide.action = torch.nn.Parameter(torch.zeros(2))
    given = {"module": wide, "state_dict": wide.state_dict(), "tensordict": weights_of(wide)}[form]
    with (
        Collector(cartpole, Constant(), frames_per_batch=10) as collector,
        pytest.raises(ValueError, match=r"the weights for action have the shape \[2\], the policy's have \[.*\]"),
    ):
        collector.update_policy_weights_(given)


def test_what_is_no_weights_is_refused():
    with (
        Collector(cartpole, Constant(), frames_per_batch=10) as collector,
        pytest.raises(TypeError, match="weights=3: give a module, a state dict or a TensorDict"),
    ):
        collector.update_policy_weights_(3)


def test_a_policy_without_weights_takes_none():
    for policy in (None, len):
        with pytest.raises(TypeError, match=r"the policy is .*, no module, which has no weights"):
            load_weights(policy, Constant())


def test_weights_between_steps_are_asked_for_by_a_keyword():
    class Slow(gymnasium.Wrapper):
        def step(self, action):
            time.sleep(0.001)
            return super().step(action)

    policy, versions = Constant(), torch.zeros(0)
    with MultiAsyncCollector(
        [lambda: Slow(cartpole())], policy, frames_per_batch=200, num_slots=1, update_weights_between_steps=True
    ) as collector:
        while len(versions) < 2:
            batch = collector.next()
            versions = batch["collector", "policy_version"].unique()
            assert torch.equal(batch["action"], batch["collector", "policy_version"] % 2)
            for _ in range(2):
                with torch.no_grad():
                    policy.action.fill_((collector.policy_version + 1) % 2)
                collector.increment_version()


def test_a_worker_that_is_a_collector_takes_weights_between_batches():
    with pytest.raises(ConfigError, match="takes weights between its batches"):
        DistributedCollector(cartpole, num_workers_per_collector=2, update_weights_between_steps=True, launcher="mp")


@torch.no_grad()
def learn(policy, action):
    policy.action.fill_(action)


def test_a_collector_in_this_process_acts_with_the_policy_as_it_is():
    policy = Constant().share_memory()
    with Collector(cartpole, policy, frames_per_batch=10) as collector:
        learn(policy, 1.0)
        assert collector.next()["action"].unique().tolist() == [1]
        learn(policy, 0.0)
        # What is learnt after the weights were published stays, as in TorchRL's own scripts.
        collector.update_policy_weights_()
        learn(policy, 1.0)
        batch = collector.next()
    assert batch["action"].unique().tolist() == [1]
    assert batch["collector", "policy_version"].unique().tolist() == [1]
    assert policy.action.item() == 1.0
    assert policy.action.is_shared()


def test_a_policy_that_acts_on_another_device_stays_where_it_is():
    policy = Constant()
    # Nothing can act there; on a GPU: tests/contract/test_collector_on_gpu.py.
    with (
        Collector(cartpole, policy, frames_per_batch=10, policy_device="meta") as collector,
        pytest.raises(RuntimeError, match="meta"),
    ):
        collector.next()
    assert policy.action.device == torch.device("cpu")


def test_a_collector_in_this_process_takes_what_a_factory_made_as_it_was_published():
    with Collector(cartpole, policy_factory=Constant, frames_per_batch=10) as collector:
        learn(collector.policy, 1.0)
        assert collector.next()["action"].unique().tolist() == [0]
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [1]


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
def test_weights_of_another_module_stay(kind):
    envs = cartpole if kind is Collector else [cartpole]
    keywords = {} if kind is Collector else {"update_at_each_batch": True}
    with kind(envs, Constant(), frames_per_batch=10, **keywords) as collector:
        collector.next()
        collector.update_policy_weights_(Constant(1.0))
        for _ in range(2):
            assert collector.next()["action"].unique().tolist() == [1]
        assert float(collector.state_dict()["policy_state_dict"]["action"]) == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_weights_of_another_dtype_are_converted(dtype):
    with MultiSyncCollector([cartpole], Constant(), frames_per_batch=10) as collector:
        collector.next()
        collector.update_policy_weights_(Constant(1.0).to(dtype))
        assert collector.next()["action"].unique().tolist() == [1]
        assert collector.policy.action.dtype == torch.float32
