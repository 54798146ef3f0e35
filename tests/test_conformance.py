"""The same envs and policies through TorchRL's collectors and through ours: the same batches, entry by entry."""

from __future__ import annotations

from functools import partial

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import torchrl.collectors as peers
import torchrlenvs
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import LSTMModule

import collectx
from collectx.collector.worker import env_seed

torch.set_num_threads(1)

# TorchRL's processes, and gymnasium's opinion of a seed that it draws.
pytestmark = pytest.mark.filterwarnings("ignore")

OURS_ALONE = ("collector", "policy_version")
# Of an env without this end, TorchRL's batches have none.
NOT_THEIRS = {"stateless": {"truncated"}, "many_keys": {"truncated"}}


class Policy(torch.nn.Module):
    """Deterministic: the actions of each env's kind from a number of the observation."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, seen):
        if self.name == "many_keys":
            turn = (seen.reshape(*seen.shape[:-3], -1)[..., 0] % 3).long()
            push = torch.stack([turn / 3.0, -turn / 2.0], -1)
            return torch.nn.functional.one_hot(turn, 3).bool(), push
        if self.name == "batched":
            return seen.sum(-1) % 5
        if self.name == "stateless":
            return torch.sin(seen)[..., None]
        if self.name in ("pendulum", "normed"):
            return 2 * seen[..., :1]
        right = (seen[..., 2] + 0.1 * seen[..., 0] > 0).long()
        return torch.nn.functional.one_hot(right, 2) if self.name == "one_hot" else right


READS = {"normed": ("agent", "state"), "many_keys": "pixels", "batched": ("nested", "counts"), "stateless": "th"}
WRITES = {"many_keys": [("agent", "move"), ("agent", "push")]}


def policy(name):
    if name == "recurrent":
        return lstm()
    return TensorDictModule(Policy(name), [READS.get(name, "observation")], WRITES.get(name, ["action"]))


def lstm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        memory = LSTMModule(4, 5, in_keys=["observation", "h", "c"], out_keys=["embed", ("next", "h"), ("next", "c")])
        head = TensorDictModule(torch.nn.Linear(5, 2), ["embed"], ["logits"])
    return TensorDictSequential(memory, head, TensorDictModule(partial(torch.argmax, dim=-1), ["logits"], ["action"]))


def seeded(make, seeds):
    """An env as our worker seeds it: one by one, or as a whole."""

    def create():
        if make is torchrlenvs.serial:
            return torchrlenvs.SerialEnv(len(seeds), [seeded(torchrlenvs.cartpole, [seed]) for seed in seeds])
        env = make()
        env.set_seed(seeds[0])
        return env

    return create


def size(name):
    return {"serial": 3, "counted_serial": 3, "batched": 3, "parallel": 2}.get(name, 1)


def collect(collector):
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


def renamed(ids):
    """Trajectory ids by their first appearance."""
    names = {}
    return torch.tensor([names.setdefault(i, len(names)) for i in ids.reshape(-1).tolist()]).reshape(ids.shape)


def assert_same(name, theirs, ours):
    assert len(theirs) == len(ours)
    for a, b in zip(theirs, ours, strict=True):
        assert (a.batch_size, a.names) == (b.batch_size, b.names)
        surplus = {key for key in keys(b) - keys(a) if key[-1] in NOT_THEIRS.get(name, ())}
        if name == "many_keys":
            surplus.add(("next", "only_root"))
        assert keys(b) - surplus == keys(a) | {OURS_ALONE}
        for key in keys(a) - {("collector", "traj_ids")}:
            assert (a[key].shape, a[key].dtype) == (b[key].shape, b[key].dtype), key
            torch.testing.assert_close(a[key], b[key], rtol=0, atol=0, msg=lambda text, key=key: f"{key}: {text}")
    ids = [torch.stack([batch["collector", "traj_ids"] for batch in batches]) for batches in (theirs, ours)]
    assert torch.equal(*map(renamed, ids))


def keys(batch):
    return {key if isinstance(key, tuple) else (key,) for key in batch.keys(True, True)}


# A ParallelEnv's processes take seconds to start, as TorchRL's workers do.
ENVS = [pytest.param(name, marks=pytest.mark.slow if name == "parallel" else ()) for name in torchrlenvs.ENVS]


@pytest.mark.parametrize("name", ENVS)
def test_a_collector_gives_the_batches_of_torchrl(name):
    make, num = torchrlenvs.ENVS[name], size(name)
    frames = {"frames_per_batch": 20 * num, "total_frames": 60 * num}
    seeds = [env_seed(0, e) for e in range(num)]
    theirs = collect(peers.Collector(seeded(make, seeds), policy(name), **frames))
    ours = collect(collectx.Collector(make, policy(name), **frames))
    assert_same(name, theirs, ours)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["counted", "serial", "batched", "recurrent"])
def test_a_sync_collector_gives_the_batches_of_torchrl(name):
    make, num = torchrlenvs.ENVS[name], size(name)
    frames = {"frames_per_batch": 40 * num, "total_frames": 120 * num}
    creates = [seeded(make, [env_seed(0, w * num + e) for e in range(num)]) for w in range(2)]
    theirs = collect(peers.MultiSyncCollector(creates, policy(name), cat_results="stack", **frames))
    ours = collect(collectx.MultiSyncCollector([make] * 2, policy(name), **frames))
    assert_same(name, theirs, ours)
