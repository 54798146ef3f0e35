"""Workers that are collectors themselves: nothing is lost, repeated or torn on the way through them; their workers act
as if they were the run's; failures and stops pass through."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest
import torch
from collecting import batches, counting, faulty, gym, mlp, start, worker_pids
from worlds.faulty import BrokenLever

from collectx.env.counting import StreamChecker
from collectx.errors import WorkerDied

WAYS = [
    ("distributed_sync", "sync"),
    ("distributed", "sync"),
    ("distributed", "async"),
    ("rpc", "async"),
    ("multi_sync", "async"),
]


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "inner"), WAYS)
def test_every_frame_arrives_once_in_order_and_whole(kind, inner):
    """Two workers of two processes with three envs each: twelve envs in all."""
    frames = 60 if kind.endswith("sync") else 30
    backend = "gloo" if kind == "multi_sync" else "auto"
    checker, versions, lags = StreamChecker(), set(), []
    with start(
        kind,
        "local",
        counting(3),
        num_workers_per_collector=2,
        inner=inner,
        frames_per_batch=frames,
        total_frames=frames * 80,
        backend=backend,
    ) as collector:
        for index, batch in enumerate(collector):
            checker.take(batch)
            env, episode = batch["observation"][..., 0], batch["observation"][..., 1]
            assert torch.equal(batch["collector", "traj_ids"], env + episode * 12)
            rows = 6 if inner == "sync" else 3
            assert batch.batch_size[-2] == rows
            newest = batch["collector", "policy_version"].unique().tolist()
            versions |= set(newest)
            lags.append(collector.policy_version - min(newest))
            done = batch["next", "done"]
            ended = batch["next", "observation"][done[..., 0]][:, 2].tolist()
            lengths = [length for part in collector.delivery.parts for length in part.lengths.tolist()]
            assert sorted(lengths) == sorted(ended)
            assert [part.policy_version for part in collector.delivery.parts] == (
                batch["collector", "policy_version"].flatten(1)[:, 0].tolist() if frames == 60 else newest
            )
            if index % 5 == 4:
                collector.publish(None)
    assert checker.frames == frames * 80
    assert versions <= set(range(17))
    assert len(versions) > 8
    if (kind, inner) == ("distributed_sync", "sync"):
        assert set(lags) == {0}


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        {},
        # 257 random frames are 65 of each of four processes, more than two of their parts of 32.
        {"max_frames_per_traj": 9, "init_random_frames": 257, "reset_at_each_iter": True, "set_truncated": True},
    ],
    ids=["plain", "ends"],
)
def test_its_workers_act_as_if_they_were_the_runs(options):
    """Seeds, trajectory ids and what the policy draws are those of as many plain workers."""
    shape = {"frames_per_batch": 4 * 2 * 16, "total_frames": 4 * 2 * 16 * 5, "seed": 3, **options}
    plain = batches("multi_sync", "local", gym(2), mlp(), num_workers=4, **shape)
    relayed = batches("distributed_sync", "local", gym(2), mlp(), num_workers_per_collector=2, **shape)
    assert [tuple(batch.batch_size) for batch in relayed] == [(2, 4, 16)] * 5
    for ours, theirs in zip(relayed, plain, strict=True):
        for key in theirs.keys(include_nested=True, leaves_only=True):
            assert torch.equal(ours[key].reshape(theirs[key].shape), theirs[key]), key
    assert [bool((batch["action_log_prob"] == 0).all()) for batch in relayed] == (
        [True, True, True, False, False] if options else [False] * 5
    )


def relays(**kwargs):
    options = {"num_workers_per_collector": 2, "frames_per_batch": 12, "total_frames": 12 * 100} | kwargs
    return start("distributed", "local", **options)


@pytest.mark.ci
def test_an_error_in_one_of_its_workers_keeps_its_type_and_its_trace():
    with relays(env=faulty("custom"), num_workers=1) as collector, pytest.raises(BrokenLever) as caught:
        for _ in collector:
            pass
    assert any("FaultyEnv" in note or "faulty.py" in note for note in caught.value.__notes__)


@pytest.mark.ci
def test_a_worker_that_is_gone_is_replaced_with_all_of_its_processes(wait_until):
    checker, log = StreamChecker(restarts=True), []
    with relays(
        env=counting(),
        total_frames=-1,
        on_worker_failure="restart",
        events=lambda name, **fields: log.append((name, fields)),
    ) as collector:

        def until_all_deliver():
            seen = set()
            while len(seen) < 2 or len(log) < 3 * (1 + len(lost)):
                checker.take(next(collector))
                seen |= {part.worker for part in collector.delivery.parts}

        lost = []
        until_all_deliver()
        first, second = (inner_pids(pid) for pid in worker_pids(collector))
        os.kill(second[0], signal.SIGKILL)
        lost.append(second)
        until_all_deliver()
        os.kill(worker_pids(collector)[0], signal.SIGKILL)
        lost.append(first)
        until_all_deliver()
    failed = [(fields["worker"], fields["type"]) for name, fields in log if name == "worker_failed"]
    assert failed == [(1, WorkerDied.__name__), (0, WorkerDied.__name__)]
    assert [len(pids) for pids in lost] == [2, 2]
    wait_until(lambda: not any(map(psutil.pid_exists, (*first, *second))), what="the end of the processes within")


def inner_pids(pid):
    """The worker processes within a worker: those of its fork server."""
    pids = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            pids += [process.pid for process in child.children()]
    return sorted(pids)


@pytest.mark.ci
def test_closing_does_not_wait_for_a_batch_and_leaves_nobody(wait_until):
    """A batch takes 400 s; a worker is asked to stop between two steps."""
    with relays(env=counting(step_s=0.2), frames_per_batch=4000, total_frames=8000, close_timeout_s=100.0) as collector:
        collector._grant(collector._schedule.begin())
        pids = worker_pids(collector)
        wait_until(lambda: all(len(inner_pids(pid)) == 2 for pid in pids), what="processes within")
        within = [inner for pid in pids for inner in inner_pids(pid)]
        # Takes in those that have joined, who then begin with their batches.
        wait_until(lambda: collector._transport._hear(0.0) or len(collector._transport._peers) == 2, what="joined")
        started = time.monotonic()
        handles = list(collector._transport._switchboard._handles.values())
    assert time.monotonic() - started < 90
    assert [handle.exitcode for handle in handles] == [0, 0]
    assert not any(psutil.pid_exists(pid) for pid in within)
