"""Compiled policies. Those recorded as CUDA graphs are in `contract/test_on_gpu.py`."""

from __future__ import annotations

import shutil

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from making import make
from torch import nn
from ways import GLOO_SYNC, SHARED_SYNC, SINGLE, over
from worlds.tracing import batches_of_each_version, by_tensordict, by_tensors

from collectx.batch import Leaf
from collectx.config import MlpPolicyConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy import ExplorationType, build, make_actor
from collectx.policy.acceleration import Acceleration
from collectx.policy.weights import FlatWeights

torch.set_num_threads(1)

# Without a compiler, in little time.
EAGER = {"backend": "eager"}


def check(way, policy, how, **keywords):
    collector = make(way, policy=policy, frames_per_batch=20, compile_policy=how, **keywords)
    assert all(batch["traced"].all() for batch in batches_of_each_version(collector, policy))


@over((SINGLE, SHARED_SYNC, GLOO_SYNC))
@pytest.mark.parametrize("create", [by_tensors, pytest.param(by_tensordict, marks=pytest.mark.ci)])
def test_a_compiled_policy_acts_with_the_newest_weights(way, create):
    check(way, create(), EAGER)


@over([SHARED_SYNC])
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_by_torchs_default(way):
    check(way, by_tensors(), True, num_workers=1, start_timeout_s=280.0)


def test_a_module_of_tensors_is_compiled():
    class Plain(nn.Module):
        def forward(self, observation):
            called.append(torch.compiler.is_compiling())
            return observation[:, 2].gt(0).long()

    called = []
    with make(SINGLE, policy=Plain(), frames_per_batch=4, compile_policy=EAGER) as collector:
        collector.next()
    # Before the frames, it is called on zeros to see what it writes.
    assert called[-4:] == [True] * 4


def test_a_built_in_policy_is_compiled_and_takes_newer_weights():
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    graphs = []
    leaves = (Leaf(("observation",), (4,), torch.float32),), (Leaf(("action",), (), torch.int64),)
    spec = EnvSpec(2, *leaves, Box(-1, 1, (4,)), Discrete(2))
    policy = build(MlpPolicyConfig("mlp", [8], "tanh"), spec, 0)
    actor = make_actor(policy, spec, torch.device("cpu"), ExplorationType.MODE)
    FlatWeights(policy).adopt()
    actor.accelerate(Acceleration({"backend": backend}))
    for sign in (1, -1):
        with torch.inference_mode():
            policy.out.bias.copy_(torch.tensor([9.0, -9.0]) * sign)
            (action,) = actor.act([torch.randn(2, 4)])
        assert action.tolist() == [sign < 0] * 2
    assert len(graphs) == 1


@pytest.mark.parametrize("no", [None, False])
def test_without_the_keyword_nothing_is_compiled(no):
    with make(SINGLE, policy=by_tensors(), frames_per_batch=4, compile_policy=no, cudagraph_policy=no) as collector:
        assert not collector.next()["traced"].any()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"compile_policy": "fast"}, "compile_policy='fast': must be True, or a dict of keyword arguments of compile"),
        ({"compile_policy": {"speed": 3}}, "compile_policy={'speed': 3}: compile: got an unexpected keyword argument"),
        ({"cudagraph_policy": {"speed": 3}}, "CudaGraphModule: got an unexpected keyword argument 'speed'"),
        ({"cudagraph_policy": True}, "cudagraph_policy=True: the policy acts on cpu, and CUDA graphs are recorded on"),
        ({"cudagraph_policy": True, "policy_device": ["cuda:0", "cpu"]}, "the policy acts on cpu"),
        ({"compile_policy": True, "policy": None}, "compile_policy=True: there is no policy, actions are random"),
    ],
)
def test_what_cannot_be_accelerated_is_refused_before_anything_starts(keywords, message):
    def never():
        raise AssertionError("an env was made")

    with pytest.raises(ConfigError) as raised:
        make(SHARED_SYNC, never, frames_per_batch=20, **{"policy": by_tensors(), **keywords})
    assert message in str(raised.value)
