"""`Collector` as the one constructor, and TorchRL's names that scripts import beside the collectors."""

import inspect
import sys
import types
from contextvars import ContextVar

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from user_code.cartpoles import cartpole

import collectx
from collectx import BaseCollector, Collector, MultiSyncCollector, service_backend
from collectx.errors import ConfigError
from collectx.library.backend_choice import select
from collectx.library.collectors import CLASSES_OF_BACKENDS

FRAMES = {"frames_per_batch": 8, "total_frames": 16}


@pytest.mark.parametrize(
    ("keywords", "name", "rest"),
    [
        ({}, None, {}),
        ({"backend": "direct", "num_collectors": 1}, None, {}),
        ({"num_collectors": 2}, "MultiAsyncCollector", {}),
        ({"backend": "multiprocessing"}, "MultiAsyncCollector", {}),
        ({"backend": "process", "sync": True, "cat_results": 0}, "MultiSyncCollector", {"cat_results": 0}),
        ({"backend": "ray"}, "RayCollector", {"sync": False}),
        ({"backend": "rpc", "backend_options": {"tcp_port": 1}}, "RPCCollector", {"sync": False, "tcp_port": 1}),
        (
            {"backend": "distributed", "sync": True, "backend_options": {"backend": "mpi"}},
            "DistributedCollector",
            {"sync": True, "backend": "mpi"},
        ),
        ({"backend": "submitit"}, "DistributedCollector", {"sync": False, "launcher": "submitit"}),
    ],
)
def test_the_backend_chooses_the_class_and_its_keywords(keywords, name, rest):
    chosen = select(CLASSES_OF_BACKENDS, (cartpole, None), {**keywords, "seed": 3})
    if name is None:
        assert chosen is None
        return
    count = keywords.get("num_collectors", 1)
    assert chosen == (getattr(collectx, name), ([cartpole] * count, None), {"seed": 3, **rest})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"backend": "thread"}, "backend='thread' is unknown. Valid values: 'direct', "),
        ({"num_collectors": 0}, "num_collectors=0 must be an int"),
        (
            {"num_collectors": 2, "backend": "direct"},
            "num_collectors=2 is not supported: this collector collects in this process",
        ),
        (
            {"num_collectors": 0, "backend": "direct"},
            "num_collectors=0 is not supported: this collector collects in this process",
        ),
        ({"sync": False}, "sync=False is not supported: this collector collects"),
        ({"create_env_fn": [cartpole] * 2, "num_collectors": 3}, "num_collectors=3, but create_env_fn has 2"),
        ({"backend": "process", "backend_options": {"sync": True}}, "backend_options contains 'sync'"),
        ({"backend": "process", "seed": 1, "backend_options": {"seed": 1}}, "backend_options contains 'seed'"),
        (
            {"backend": "submitit", "launcher": "mp"},
            "launcher='mp' cannot be used, because backend='submitit' already selects the launcher",
        ),
    ],
)
def test_contradictions_are_refused_before_anything_starts(keywords, message):
    with pytest.raises(ConfigError, match=message):
        Collector(**{"create_env_fn": cartpole, **FRAMES, **keywords})


def test_one_collector_in_this_process_may_be_asked_for():
    with Collector(cartpole, num_collectors=1, backend="direct", **FRAMES) as collector:
        assert type(collector) is Collector


def test_the_one_constructor_collects_with_workers():
    with Collector(cartpole, num_collectors=2, sync=True, backend_options={"cat_results": -1}, **FRAMES) as collector:
        assert type(collector) is MultiSyncCollector
        assert isinstance(collector, BaseCollector)
        assert [batch.shape[0] for batch in collector] == [8, 8]


def test_service_backend_is_the_default_of_collector_itself_within_its_block(monkeypatch):
    class Own(Collector):
        pass

    def of(**keywords):
        chosen = select(CLASSES_OF_BACKENDS, (cartpole,), keywords)
        return "Collector" if chosen is None else chosen[0].__name__

    theirs = types.SimpleNamespace(_SERVICE_BACKEND_CONTEXT=ContextVar("theirs"))
    with service_backend("process"):
        assert of() == "MultiAsyncCollector"
        assert of(backend="direct") == "Collector"
        with service_backend("rpc"):
            assert of() == "RPCCollector"
        with Own(cartpole, **FRAMES) as collector:
            assert type(collector) is Own
    assert of() == "Collector"
    with pytest.raises(ConfigError, match="backend='nope'"), service_backend("nope"):
        pass
    torchrls = pytest.importorskip("torchrl").service_backend
    with torchrls("process"):
        assert of() == "MultiAsyncCollector"
    monkeypatch.setitem(sys.modules, "torchrl._comm.backends", theirs)
    assert of() == "Collector"


def test_async_collector_has_one_worker():
    with collectx.AsyncCollector(cartpole, **FRAMES) as collector:
        assert collector.num_workers == 1
        assert next(collector).shape == (8,)
    with pytest.raises(ConfigError, match=r"num_workers=2 cannot be used: an AsyncCollector has one worker"):
        collectx.AsyncCollector(cartpole, num_workers=2, **FRAMES)
    assert issubclass(collectx.AsyncCollector, collectx.MultiAsyncCollector)
    assert collectx.aSyncDataCollector is collectx.AsyncCollector
    assert collectx.DataCollectorBase is BaseCollector


def test_a_random_policy_without_a_spec_gets_that_of_the_env():
    policy = collectx.RandomPolicy()
    with pytest.raises(RuntimeError, match="no action_spec"):
        policy({})
    with Collector(cartpole, policy, **FRAMES) as collector, Collector(cartpole, **FRAMES) as default:
        assert collector.policy is policy
        assert policy.action_spec == cartpole().action_space
        assert isinstance(default.policy, collectx.RandomPolicy)
        batch = next(collector)
        assert set(batch["action"].unique().tolist()) == {0, 1}
        assert int(default.policy(batch[0].clone())["action"]) in (0, 1)


def test_a_random_policy_gets_the_spec_of_torchrls_env():
    torchrlenvs = pytest.importorskip("user_code.torchrlenvs")
    policy = collectx.RandomPolicy()
    with Collector(torchrlenvs.one_hot, policy, **FRAMES) as collector:
        assert policy.action_spec == torchrlenvs.one_hot().full_action_spec
        assert policy(next(collector)[0].select("observation"))["action"].sum() == 1


class Halved(collectx.WeightUpdaterBase):
    def _maybe_map_weights(self, weights):
        return weights / 2


@pytest.mark.parametrize("make", [Halved, lambda: Halved])
def test_a_weight_updater_maps_the_weights_of_the_policy_and_calls_its_hooks(make):
    policy, called, updater = nn.Linear(4, 2), [], make()
    nn.init.ones_(policy.bias)
    act = nn.Sequential(policy, nn.Softmax(-1))
    act.forward = lambda seen: policy(seen).argmax(-1)
    with Collector(cartpole, act, weight_updater=updater, **FRAMES) as collector:
        if isinstance(updater, Halved):
            updater.register_post_hook(lambda: called.append(policy.bias[0].item()))
            assert updater.collector is collector
            updater()
            assert called == [0.5]
        else:
            collector.update_policy_weights_()
        assert torch.equal(policy.bias, torch.full((2,), 0.5))
        collector.update_policy_weights_(policy=None, weights=TensorDict.from_module(act).data * 4)
        assert torch.equal(policy.bias, torch.ones(2))
        assert collector.policy_version == 2


def test_signatures_are_those_of_the_constructors():
    class Users(Collector):
        def __init__(self, create_env_fn, extra=1):
            pass

    assert {"create_env_fn", "policy", "backend"} < set(inspect.signature(Collector).parameters)
    assert list(inspect.signature(Users).parameters) == ["create_env_fn", "extra"]
