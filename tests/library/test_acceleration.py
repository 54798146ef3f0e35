"""Compiled policies; what cannot be compiled is in `test_refusals.py`. Those recorded as CUDA graphs are in
`contract/test_on_gpu.py`."""

import shutil

import pytest
import torch
from configurations import gym, mlp
from library_collectors import make
from torch import nn
from user_code.tracing import batches_of_each_version, by_tensordict, by_tensors
from ways import GLOO_SYNC, SHARED_SYNC, SINGLE, over

from collectx import env as envs
from collectx import policy as policies

# Without a compiler, in little time.
EAGER = {"backend": "eager"}


def check(way, policy, how, **keywords):
    collector = make(way, policy=policy, frames_per_batch=20, compile_policy=how, **keywords)
    assert all(batch["traced"].all() for batch in batches_of_each_version(collector, policy))


@over((SINGLE, SHARED_SYNC, GLOO_SYNC))
@pytest.mark.parametrize("create", [by_tensors, pytest.param(by_tensordict, marks=pytest.mark.ci)])
def test_a_compiled_policy_acts_with_the_newest_weights(way, create):
    check(way, create(), EAGER)


@pytest.mark.nightly
@over([SHARED_SYNC])
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_by_torchs_default(way):
    check(way, by_tensors(), True, num_workers=1, start_timeout_s=280.0)


class Compiled(nn.Module):
    """A policy whose action is whether torch.compile traced the call."""

    def forward(self, observation):
        return torch.full(observation.shape[:-1], int(torch.compiler.is_compiling()))


@pytest.mark.parametrize(("how", "action"), [(EAGER, 1), (None, 0), (False, 0)])
def test_a_module_of_tensors_is_compiled_if_the_keyword_says_so(how, action):
    keywords = {"compile_policy": how}
    with make(SINGLE, policy=Compiled(), frames_per_batch=4, **keywords) as collector:
        assert collector.next()["action"].tolist() == [action] * 4


def test_a_built_in_policy_is_compiled_and_takes_newer_weights():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()  # another test may have compiled the same code
    policy = policies.build(mlp(), envs.read_spec(gym()), 0)
    with make(SINGLE, policy=policy, frames_per_batch=4, compile_policy={"backend": backend}) as collector:
        for sign in (1, -1):
            policy.out.bias.data = torch.tensor([9.0, -9.0]) * sign
            collector.update_policy_weights_()
            assert collector.next()["action"].tolist() == [sign < 0] * 4
    assert len(graphs) == 1
