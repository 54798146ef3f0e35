"""`collector.on_worker_failure`: workers that are killed, hang or raise in mid-run are replaced or dropped, and what is
delivered stays whole, in every collector class between processes."""

from __future__ import annotations

import os
import signal

import pytest
from collecting import Log, counting, faulty, start, worker_pids
from worlds.faulty import BrokenLever

from collectx.env.counting import LIFE, StreamChecker
from collectx.errors import WorkerDied, WorkerTimeout

KINDS = ("multi_sync", "multi_async", "distributed_sync", "distributed", "rpc_sync", "rpc")
SYNC = ("multi_sync", "distributed_sync", "rpc_sync")
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.ci)], ids=["killed", "frozen"]
)
def test_a_lost_worker_is_replaced_and_nothing_is_lost_repeated_or_torn(kind, how):
    checker, log = StreamChecker(restarts=True), Log()
    lives, after, index = {0}, 0, 0
    with start(
        kind,
        "local",
        counting(3, step_s=0.001),
        num_workers=3,
        frames_per_batch=45,
        total_frames=-1,
        on_worker_failure="restart",
        worker_timeout_s=10.0 if how == signal.SIGSTOP else 60.0,
        close_timeout_s=1.0,
        events=log,
    ) as collector:
        while after < 10:
            batch = next(collector)
            checker.take(batch)
            assert batch.numel() == 45
            index += 1
            mine = batch["observation"].reshape(-1, 5)
            newest = max((episode // LIFE for env, episode in mine[:, :2].tolist() if 3 <= env < 6), default=0)
            # Once when all are at work, and once more when the second life is.
            if index == 5 or newest not in lives:
                lives.add(newest)
                if len(lives) < 3:
                    os.kill(worker_pids(collector)[1], how)
            after += 2 in lives
    expected = WorkerDied if how == signal.SIGKILL else WorkerTimeout
    assert [(each["worker"], each["type"]) for each in log.of("worker_failed")] == [(1, expected.__name__)] * 2
    assert [(each["worker"], each["life"]) for each in log.of("worker_restarted")] == [(1, 1), (1, 2)]


@kinds
def test_a_worker_that_raises_is_replaced(kind, tmp_path):
    env = faulty("custom", at_step=8, claim=str(tmp_path / "claim"))
    log = Log()
    with start(kind, "local", env, total_frames=240, on_worker_failure="restart", events=log) as collector:
        assert sum(batch.numel() for batch in collector) == 240
    assert [each["type"] for each in log.of("worker_failed")] == ["BrokenLever"]
    assert len(log.of("worker_restarted")) == 1


def test_too_many_restarts_end_the_run_with_the_workers_own_error():
    with (
        start("multi_async", "local", faulty("custom"), on_worker_failure="restart", max_restarts=2) as collector,
        pytest.raises(BrokenLever) as caught,
    ):
        for _ in collector:
            pass
    assert any("collector.max_restarts=2" in note for note in caught.value.__notes__)


@kinds
def test_the_run_goes_on_with_fewer(kind):
    checker, log, sizes, after = StreamChecker(), Log(), [], 0
    with start(
        kind,
        "local",
        counting(2),
        num_workers=3,
        frames_per_batch=30,
        total_frames=-1,
        on_worker_failure="drop",
        events=log,
    ) as collector:
        pids, seen = worker_pids(collector), set()
        for batch in collector:
            checker.take(batch)
            sizes.append(tuple(batch.batch_size))
            parts = {part.worker for part in collector.delivery.parts}
            if log.of("worker_dropped"):
                # What it had finished before may be the last of it.
                after += 1
                assert after <= 3 or 1 not in parts
                if after == 20:
                    break
            elif len(seen) < 3:
                seen |= parts
                if len(seen) == 3:
                    os.kill(pids[1], signal.SIGKILL)
    assert log.of("worker_dropped") == [{"worker": 1, "num_workers": 2}]
    if kind in SYNC:
        assert (sizes[0], sizes[-1]) == ((3, 2, 5), (2, 2, 5))
    else:
        assert set(sizes) == {(2, 15)}


def test_the_last_worker_cannot_be_dropped():
    with start("multi_async", "local", faulty("custom"), on_worker_failure="drop") as collector:
        with pytest.raises(BrokenLever):
            for _ in collector:
                pass
        with pytest.raises(BrokenLever):
            next(collector)


@pytest.mark.parametrize("kind", ["single", "multi_async"])
def test_inline_workers_are_replaced_as_well(kind, tmp_path):
    env = faulty("builtin", at_step=8, claim=str(tmp_path / "claim"))
    with start(kind, "inline", env, total_frames=240, on_worker_failure="restart") as collector:
        assert sum(batch.numel() for batch in collector) == 240


def test_zero_copy_batches_survive_a_replacement():
    checker = StreamChecker(restarts=True)
    with start(
        "multi_async",
        "local",
        counting(2),
        frames_per_batch=20,
        total_frames=20 * 40,
        zero_copy=True,
        on_worker_failure="restart",
    ) as collector:
        for index, batch in enumerate(collector):
            if index == 10:
                os.kill(worker_pids(collector)[collector.delivery.parts[0].worker], signal.SIGKILL)
            checker.take(batch)
    assert checker.frames == 20 * 40
