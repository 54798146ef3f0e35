"""All tests that need a GPU (`make test-gpu`): policies act there as on the CPU, and weights get there and back."""

import pytest
import torch
from collecting import batches, counting, gym, mlp
from making import make
from tensordict.nn import TensorDictModule
from torch import nn
from ways import SHARED, SHARED_SYNC, SINGLE, over
from worlds.cartpoles import Argmax
from worlds.streams import StreamChecker
from worlds.tracing import batches_of_each_version, by_tensordict, by_tensors

from collectx import policy as policies
from collectx.env import build
from collectx.policy import ExplorationType, make_actor
from collectx.policy.weights import FlatWeights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@over((SINGLE, *SHARED))
def test_frames_are_whole_with_a_policy_on_the_gpu(way):
    checker = StreamChecker()
    options = {"frames_per_batch": 30, "total_frames": 600, "device": "cuda"}
    for batch in batches(way.kind, way.place, counting(3), mlp(), **options):
        assert batch.device.type == "cuda"
        checker.take(batch.cpu())
    assert checker.frames == 600


@over((SINGLE, SHARED_SYNC))
def test_the_gpu_acts_as_the_cpu_does(way):
    options = {"frames_per_batch": 60, "total_frames": 60, "exploration_type": "deterministic"}
    (there,), (here,) = (batches(way.kind, way.place, gym(3), mlp(), device=on, **options) for on in ("cuda", "cpu"))
    for key in ("action", "observation"):
        assert torch.equal(there[key].cpu(), here[key])


@pytest.mark.parametrize(("lies", "acts"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_the_users_policy_stays_on_its_device(lies, acts):
    policy = Argmax().to(lies)
    acting = TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])
    with make(SINGLE, policy=acting, frames_per_batch=10, policy_device=acts) as collector:
        for action in (0, 1):
            with torch.no_grad():
                policy.layer.weight.zero_()
                policy.layer.bias.copy_(torch.tensor([1.0 - action, float(action)]))
            collector.update_policy_weights_()
            assert collector.next()["action"].unique().tolist() == [action]
    assert policy.layer.weight.device.type == lies


@pytest.mark.parametrize("env", [gym(3), gym(3, "Pendulum-v1")], ids=["categorical", "gaussian"])
def test_acting_does_not_wait_for_the_gpu(env):
    spec = build(env).spec
    actor = make_actor(policies.build(mlp(), spec, 0), spec, torch.device("cuda"), ExplorationType.RANDOM)
    seen = [torch.zeros(3, *leaf.shape, device="cuda") for leaf in spec.observation]
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            out = actor.act(seen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(value.device.type == "cuda" for value in out)


def test_weights_from_and_to_a_gpu():
    source, target = (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).cuda() for _ in range(2))
    buffer = torch.zeros(FlatWeights(source).nbytes, dtype=torch.uint8)
    FlatWeights(source).write(buffer)
    FlatWeights(target).read(buffer)
    assert all(torch.equal(source.state_dict()[key], value) for key, value in target.state_dict().items())


@over([SHARED_SYNC])
@pytest.mark.parametrize("create", [by_tensors, by_tensordict])
def test_recorded_calls_act_with_the_newest_weights(way, create):
    policy = create()
    options = {"frames_per_batch": 20, "policy_device": "cuda", "cudagraph_policy": True}
    for batch in batches_of_each_version(make(way, policy=policy, **options), policy):
        assert torch.equal(batch["action"], batch["observation"][..., 2].gt(0).long())
