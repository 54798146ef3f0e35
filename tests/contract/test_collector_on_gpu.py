"""Collectors whose policy acts on the GPU give the same stream, there and on the CPU."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from collecting import batches, counting, gym, mlp
from tensordict.nn import TensorDictModule
from torch import nn

from collectx import Collector
from collectx.env.counting import StreamChecker

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
ways = pytest.mark.parametrize(
    ("kind", "place"), [("single", "inline"), ("multi_sync", "local"), ("multi_async", "local")]
)


@ways
def test_frames_are_whole_with_a_policy_on_the_gpu(kind, place):
    checker = StreamChecker()
    for batch in batches(kind, place, counting(3), mlp(), frames_per_batch=30, total_frames=600, device="cuda"):
        assert batch.device == torch.device("cuda")
        checker.take(batch.cpu())
    assert checker.frames == 600


@ways
def test_the_gpu_acts_as_the_cpu_does(kind, place):
    kwargs = {"frames_per_batch": 60, "total_frames": 60, "exploration": "deterministic"}
    (there,) = batches(kind, place, gym(3), mlp(), device="cuda", **kwargs)
    (here,) = batches(kind, place, gym(3), mlp(), **kwargs)
    assert torch.equal(there["action"].cpu(), here["action"])
    assert torch.equal(there["observation"].cpu(), here["observation"])


@pytest.mark.parametrize(("lies", "acts"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_the_users_policy_stays_on_its_device(lies, acts):
    policy = nn.Linear(4, 2).to(lies)

    def learn(action):
        with torch.no_grad():
            policy.weight.zero_()
            policy.bias.copy_(torch.tensor([1.0 - action, float(action)]))

    acting = TensorDictModule(nn.Sequential(policy, Argmax()), in_keys=["observation"], out_keys=["action"])
    learn(0)
    with Collector(lambda: gymnasium.make("CartPole-v1"), acting, frames_per_batch=10, policy_device=acts) as collector:
        assert collector.next()["action"].unique().tolist() == [0]
        learn(1)
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [1]
    assert policy.weight.device.type == lies


class Argmax(nn.Module):
    def forward(self, values):
        return values.argmax(-1)
