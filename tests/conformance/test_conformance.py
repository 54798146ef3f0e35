"""The same envs and policies through TorchRL's collectors and through ours: the same batches, entry by entry. The
keywords are in `test_conformance_keywords.py` and `test_conformance_workers.py`."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import torchrl.collectors as peers
from conforming import assert_same, collect, policy, seeded, seeds, size
from worlds import torchrlenvs

import collectx

torch.set_num_threads(1)

# TorchRL's processes, and gymnasium's opinion of a seed that it draws.
pytestmark = pytest.mark.filterwarnings("ignore")

# A ParallelEnv's processes take seconds to start, as TorchRL's workers do.
ENVS = [pytest.param(name, marks=pytest.mark.ci if name == "parallel" else ()) for name in torchrlenvs.ENVS]


@pytest.mark.parametrize("name", ENVS)
def test_a_collector_gives_the_batches_of_torchrl(name):
    make, num = torchrlenvs.ENVS[name], size(name)
    frames = {"frames_per_batch": 20 * num, "total_frames": 60 * num}
    theirs = collect(peers.Collector(seeded(make, seeds(name)), policy(name), **frames))
    ours = collect(collectx.Collector(make, policy(name), **frames))
    assert_same(name, theirs, ours)


@pytest.mark.ci
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["counted", "serial", "batched", "recurrent"])
def test_a_sync_collector_gives_the_batches_of_torchrl(name):
    make, num = torchrlenvs.ENVS[name], size(name)
    frames = {"frames_per_batch": 40 * num, "total_frames": 120 * num}
    creates = [seeded(make, seeds(name, w)) for w in range(2)]
    theirs = collect(peers.MultiSyncCollector(creates, policy(name), cat_results="stack", **frames))
    ours = collect(collectx.MultiSyncCollector([make] * 2, policy(name), **frames))
    assert_same(name, theirs, ours)
