"""The keywords of TorchRL's collectors of several processes, through its classes and through ours."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import torchrl.collectors as peers
import torchrldistributed
from conforming import ResetTwice, assert_alike, assert_same, collect, in_order, policy, seeded, seeds, size, squared
from torchrl.envs.utils import ExplorationType
from worlds import torchrlenvs

import collectx

torch.set_num_threads(1)

# TorchRL's processes take seconds to start.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.ci, pytest.mark.timeout(400)]


def both(name, create=None, **keywords):
    """All batches of TorchRL's MultiSyncCollector and of ours, of two workers; `create`: how ours make the env."""
    make, num = torchrlenvs.ENVS[name], size(name)
    keywords = {"frames_per_batch": 40 * num, "total_frames": 120 * num, **keywords}
    creates = [seeded(make, seeds(name, worker)) for worker in range(2)]
    theirs = collect(peers.MultiSyncCollector(creates, policy(name), **keywords))
    return theirs, collect(collectx.MultiSyncCollector([create or make] * 2, policy(name), **keywords))


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("serial", {"cat_results": 0, "postproc": squared, "storing_device": "cpu"}),
        ("serial", {"cat_results": -1, "frames_per_batch": 130, "total_frames": 260, "no_cuda_sync": True}),
        (
            "cartpole",
            {"max_frames_per_traj": 5, "set_truncated": True, "update_at_each_batch": True, "use_buffers": False},
        ),
        ("pendulum", {"exploration_type": ExplorationType.MODE, "device": "cpu", "num_threads": 1}),
    ],
    ids=str,
)
def test_a_sync_collector_does_what_torchrl_does(name, keywords):
    assert_same(name, *both(name, **keywords))


@pytest.mark.parametrize("how", ["stack", 0])
def test_a_sync_collector_splits_as_torchrl(how):
    theirs, ours = both("serial", split_trajs=True, cat_results=how, max_frames_per_traj=6)
    # One by one: in a later batch TorchRL gives another trajectory an id that it gave before.
    for a, b in zip(theirs, ours, strict=True):
        assert_same("serial", [in_order(a)], [in_order(b)], names=False)


def test_a_sync_collector_resets_at_each_iteration():
    create = ResetTwice(torchrlenvs.cartpole)
    assert_same("cartpole", *both("cartpole", create, reset_at_each_iter=True, cat_results=0))


def test_a_sync_collector_begins_with_random_frames():
    theirs, ours = both("one_hot", init_random_frames=50)
    for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        assert_alike("one_hot", a, b)
        for batch in (a, b):
            by_policy = policy("one_hot").module(batch["observation"])
            assert torch.equal(batch["action"], by_policy) == (number == 2)


# --- async: the order is free, so each worker's batches are compared with those of TorchRL's worker ---


MAKES = torchrldistributed.MAKES


def batches_of_each(collector, count=2):
    """So many batches of each worker, which are known by what is in `hidden`."""
    found = {0: [], 1: []}
    deadline = time.monotonic() + 200
    try:
        while min(map(len, found.values())) < count:
            assert time.monotonic() < deadline
            batch = collector.next().clone()
            found[int(batch["hidden"].reshape(-1)[0])].append(batch)
    finally:
        collector.shutdown()
    return [batches[:count] for batches in found.values()]


@pytest.mark.parametrize(
    "keywords",
    [{"max_frames_per_traj": 5, "set_truncated": True}, {"split_trajs": True, "postproc": squared}],
    ids=str,
)
def test_an_async_collector_does_what_torchrl_does(keywords):
    keywords = {"frames_per_batch": 40, "total_frames": -1, **keywords}
    creates = [seeded(make, seeds("cartpole", worker)) for worker, make in enumerate(MAKES)]
    theirs = batches_of_each(peers.MultiAsyncCollector(creates, policy("cartpole"), **keywords))
    ours = batches_of_each(collectx.MultiAsyncCollector(MAKES, policy("cartpole"), **keywords))
    for a, b in zip(theirs, ours, strict=True):
        if "split_trajs" in keywords:
            a, b = list(map(in_order, a)), list(map(in_order, b))
        assert_same("cartpole", a, b, names="split_trajs" not in keywords)


# --- over torch.distributed ---


def torchrl_distributed(way, path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, torchrldistributed.__file__, way, str(port), path]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert process.wait(200) == 0
    finally:
        # Its workers too, which it may leave behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    return torch.load(path, weights_only=False)


def test_a_distributed_sync_collector_gives_batches_like_those_of_torchrl(tmp_path):
    theirs = torchrl_distributed("sync", tmp_path / "batches.pt")
    ours = collect(
        collectx.DistributedSyncCollector(MAKES, policy("cartpole"), launcher="mp", **torchrldistributed.FRAMES)
    )
    # Not what is in them: TorchRL mixes up its workers' parts.
    for a, b in zip(theirs, ours, strict=True):
        assert_alike("cartpole", a, b)
        assert [part["hidden"].unique().tolist() for part in b] == [[0.0], [1.0]]


def test_a_distributed_collector_does_what_torchrl_does(tmp_path):
    theirs = torchrl_distributed("async", tmp_path / "batches.pt")
    keywords = {**torchrldistributed.FRAMES, "total_frames": -1, "launcher": "mp"}
    ours = batches_of_each(collectx.DistributedCollector(MAKES, policy("cartpole"), **keywords), 3)
    for worker in range(2):
        own = [batch for batch in theirs if batch["hidden"].unique().tolist() == [worker]]
        if own:
            assert_same("cartpole", own, ours[worker][: len(own)])
