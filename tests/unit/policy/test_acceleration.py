"""Compiled policies, and policies recorded as CUDA graphs."""

from __future__ import annotations

import shutil

import gymnasium
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from collectx import Collector, DistributedSyncCollector, MultiSyncCollector
from collectx.batch import Leaf
from collectx.config import MlpPolicyConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy import ExplorationType, build, make_actor
from collectx.policy.acceleration import Acceleration
from collectx.policy.weights import FlatWeights

torch.set_num_threads(1)

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")

ACTION = Leaf(("action",), (), torch.int64)

# Without a compiler, in little time.
EAGER = {"backend": "eager"}


def cartpole():
    return gymnasium.make("CartPole-v1")


class Telling(nn.Module):
    """Says of every call whether it was traced by torch.compile."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        traced = torch.full(observation.shape[:1], torch.compiler.is_compiling())
        return observation[:, 2].gt(0).long(), self.bias.expand(observation.shape[:1]), traced


def telling():
    return TensorDictModule(Telling(), ["observation"], ["action", "bias", "traced"])


def sampled():
    """One that is called with a TensorDict."""
    return ProbabilisticTensorDictSequential(
        telling(),
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["drawn"], distribution_class=torch.distributions.Categorical),
    )


def check(collector, policy):
    """Its batches come from the compiled policy, with the weights of the moment."""
    bias = next(parameter for name, parameter in policy.named_parameters() if name.endswith("bias"))
    with collector:
        assert collector.next()["traced"].all()
        for value in (3.0, 4.0):
            with torch.no_grad():
                bias.fill_(value)
            collector.update_policy_weights_()
            batch = collector.next()
            assert batch["traced"].all()
            assert (batch["bias"] == value).all()


@pytest.mark.parametrize(
    "kind",
    [
        Collector,
        *(pytest.param(kind, marks=pytest.mark.ci) for kind in (MultiSyncCollector, DistributedSyncCollector)),
    ],
)
@pytest.mark.parametrize("make", [telling, sampled])
def test_a_compiled_policy_acts_with_the_newest_weights(kind, make):
    policy = make()
    keywords = {"launcher": "mp"} if kind is DistributedSyncCollector else {}
    creates = cartpole if kind is Collector else [cartpole] * 2
    check(kind(creates, policy, frames_per_batch=20, compile_policy=EAGER, **keywords), policy)


def test_a_module_of_tensors_is_compiled():
    class Plain(nn.Module):
        def forward(self, observation):
            called.append(torch.compiler.is_compiling())
            return observation[:, 2].gt(0).long()

    called = []
    with Collector(cartpole, Plain(), frames_per_batch=4, compile_policy=EAGER) as collector:
        collector.next()
    # In the trainer's and in the worker's part once on zeros, to see what it writes.
    assert called == [False, False, True, True, True, True]


def test_a_built_in_policy_is_compiled_and_takes_newer_weights():
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    graphs = []
    spec = EnvSpec(2, (Leaf(("observation",), (4,), torch.float32),), (ACTION,), Box(-1, 1, (4,)), Discrete(2))
    policy = build(MlpPolicyConfig("mlp", [8], "tanh"), spec, 0)
    actor = make_actor(policy, spec, torch.device("cpu"), ExplorationType.MODE)
    FlatWeights(policy).adopt()
    actor.accelerate(Acceleration({"backend": backend}))
    seen = [torch.randn(2, 4)]
    for sign in (1, -1):
        with torch.inference_mode():
            policy.out.bias.copy_(torch.tensor([9.0, -9.0]) * sign)
            (action,) = actor.act(seen)
        assert action.tolist() == [sign < 0] * 2
    assert len(graphs) == 1


def test_without_the_keyword_nothing_is_compiled():
    for no in (None, False):
        with Collector(cartpole, telling(), frames_per_batch=4, compile_policy=no, cudagraph_policy=no) as collector:
            assert not collector.next()["traced"].any()


@pytest.mark.ci
@needs_compiler
def test_compiled_by_torchs_default():
    policy = telling()
    check(MultiSyncCollector([cartpole] * 2, policy, frames_per_batch=20, compile_policy=True), policy)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"compile_policy": "fast"}, "compile_policy='fast': must be True, or a dict of keyword arguments of compile"),
        (
            {"compile_policy": {"speed": 3}},
            "compile_policy={'speed': 3}: compile: got an unexpected keyword argument 's",
        ),
        ({"cudagraph_policy": {"speed": 3}}, "CudaGraphModule: got an unexpected keyword argument 'speed'"),
        (
            {"cudagraph_policy": True},
            "cudagraph_policy=True: the policy acts on cpu, and CUDA graphs are recorded on GP",
        ),
        ({"cudagraph_policy": True, "policy_device": ["cuda:0", "cpu"]}, "the policy acts on cpu"),
        ({"compile_policy": True, "policy": None}, "compile_policy=True: there is no policy, actions are random"),
    ],
)
def test_what_cannot_be_accelerated_is_refused_before_anything_starts(keywords, said):
    def never():
        raise AssertionError("an env was made")

    keywords = {"policy": telling(), **keywords}
    with pytest.raises(ConfigError) as raised:
        MultiSyncCollector([never] * 2, frames_per_batch=20, **keywords)
    assert said in str(raised.value)


@needs_gpu
@pytest.mark.parametrize("make", [telling, sampled])
def test_recorded_calls_act_with_the_newest_weights(make):
    policy = make()
    bias = next(parameter for name, parameter in policy.named_parameters() if name.endswith("bias"))
    frames = {"frames_per_batch": 20, "policy_device": "cuda", "cudagraph_policy": True}
    with MultiSyncCollector([cartpole] * 2, policy, **frames) as collector:
        for value in (0.0, 3.0, 4.0):
            with torch.no_grad():
                bias.fill_(value)
            collector.update_policy_weights_()
            batch = collector.next()
            assert (batch["bias"] == value).all()
            assert torch.equal(batch["action"], batch["observation"][..., 2].gt(0).long())
