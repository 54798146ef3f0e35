"""Sync batches whose parts have different numbers of frames, through TorchRL's class and through ours."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import torchrl.collectors as peers
from conforming import assert_alike, assert_same, collect, policy, seeded, seeds, size
from torchrl.envs import Transform, TransformedEnv
from worlds import torchrlenvs

import collectx

torch.set_num_threads(1)

# TorchRL's workers take seconds to start.
pytestmark = [pytest.mark.ci, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(("name", "dim"), [("cartpole", 0), ("serial", -1)])
def test_each_worker_has_frames_of_its_own_as_in_torchrl(name, dim):
    make, num = torchrlenvs.ENVS[name], size(name)
    frames = {"frames_per_batch": [10 * num, 20 * num], "total_frames": 90 * num, "cat_results": dim}
    theirs = peers.MultiSyncCollector([seeded(make, seeds(name, w)) for w in range(2)], policy(name), **frames)
    ours = collectx.MultiSyncCollector([make] * 2, policy(name), **frames)
    assert ours.requested_frames_per_batch == theirs.requested_frames_per_batch
    assert_same(name, collect(theirs), collect(ours))


class Waits(Transform):
    """So long that the other worker is done before the second step."""

    def _step(self, data, after):
        time.sleep(0.2)
        return after


def waiting(make):
    return TransformedEnv(make(), Waits())


@pytest.mark.parametrize("dim", ["stack", -1])
def test_parts_are_cut_short_as_in_torchrl(dim):
    make = torchrlenvs.cartpole
    frames = {"frames_per_batch": 40, "total_frames": 40, "cat_results": dim, "preemptive_threshold": 0.5}
    creates = [make, partial(waiting, make)]
    theirs, *_ = collect(peers.MultiSyncCollector(creates, policy("cartpole"), **frames))
    ours, *_ = collect(collectx.MultiSyncCollector(creates, policy("cartpole"), **frames))
    if dim == -1:
        assert theirs.names == ours.names
        assert all(20 < batch.numel() < 40 for batch in (theirs, ours))
        return
    assert_alike("cartpole", theirs, ours)
    for batch in (theirs, ours):
        mask = batch["collector", "mask"]
        assert mask[0].all()
        assert 1 <= mask[1].sum() < 20
        assert torch.equal(batch["collector", "traj_ids"] < 0, ~mask)
