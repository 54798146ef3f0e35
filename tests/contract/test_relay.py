"""Workers that are collectors themselves: seeds, lost processes and stops pass through them. They are also among the
ways of `test_collector_contract.py` and `test_survival.py`."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil
import pytest
from collecting import Log, counting, gym, mlp, start, worker_pids
from ways import GLOO_ASYNC, GLOO_SYNC, RAY_SYNC, case

from collectx.env.counting import StreamChecker
from collectx.run.digest import digest_of


def relays(way, env=None, policy=None, **knobs):
    options = {"num_workers_per_collector": 2, "frames_per_batch": 12, "total_frames": -1} | knobs
    return start(way.kind, way.place, env or counting(), policy, **options)


# 257 random frames are 65 of each of four processes, more than two of their parts of 32.
ENDS = {"max_frames_per_traj": 9, "init_random_frames": 257, "reset_at_each_iter": True, "set_truncated": True}


@pytest.mark.parametrize(("way", "options"), [case(GLOO_SYNC, None), case(GLOO_SYNC, "ends"), case(RAY_SYNC, None)])
def test_its_workers_act_as_if_they_were_the_runs(way, options):
    """Seeds, trajectory ids and what the policy draws are those of as many plain workers."""
    shape = {"frames_per_batch": 4 * 2 * 16, "total_frames": 4 * 2 * 16 * 5, "seed": 3} | (ENDS if options else {})
    with start("multi_sync", "inline", gym(2), mlp(), num_workers=4, **shape) as collector:
        plain = list(collector)
    with relays(way, gym(2), mlp(), **shape) as collector:
        relayed = list(collector)
    assert [tuple(batch.batch_size) for batch in relayed] == [(2, 4, 16)] * 5
    assert [digest_of(batch.reshape(4, 2, 16)) for batch in relayed] == [digest_of(batch) for batch in plain]
    assert [bool((batch["action_log_prob"] == 0).all()) for batch in relayed] == (
        [True, True, True, False, False] if options else [False] * 5
    )


def inner_pids(pid):
    """The worker processes within a worker: those of its fork server."""
    pids = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            pids += [process.pid for process in child.children()]
    return pids


@pytest.mark.ci
def test_one_that_is_killed_takes_its_processes_along(wait_until):
    checker, log = StreamChecker(restarts=True), Log()
    with relays(GLOO_ASYNC, on_worker_failure="restart", events=log) as collector:

        def until_both_deliver(num_joined):
            seen = set()
            while len(seen) < 2 or len(log.of("worker_joined")) < num_joined:
                checker.take(next(collector))
                seen |= {part.worker for part in collector.delivery.parts}

        until_both_deliver(2)
        pid = worker_pids(collector)[0]
        within = inner_pids(pid)
        assert len(within) == 2
        os.kill(pid, signal.SIGKILL)
        until_both_deliver(3)
    assert [(each["worker"], each["type"]) for each in log.of("worker_failed")] == [(0, "WorkerDied")]
    wait_until(lambda: not any(map(psutil.pid_exists, within)), what="the end of the processes within")


class AllJoined(Exception):
    pass


@pytest.mark.ci
def test_closing_does_not_wait_for_a_batch_and_leaves_nobody(wait_until):
    """A batch takes 400 s; a worker stops between two steps."""
    joined = []

    def events(name, **fields):
        joined.extend([name] if name == "worker_joined" else [])
        if len(joined) == 2:
            raise AllJoined

    shape = {"frames_per_batch": 4000, "close_timeout_s": 200.0}
    with relays(GLOO_ASYNC, counting(step_s=0.2), events=events, **shape) as collector:
        # Both have been granted a batch by then.
        with pytest.raises(AllJoined):
            next(collector)
        handles, pids = list(collector.handles().values()), worker_pids(collector)
        wait_until(lambda: all(len(inner_pids(pid)) == 2 for pid in pids), what="processes within")
        within = [inner for pid in pids for inner in inner_pids(pid)]
    assert [handle.exitcode for handle in handles] == [0, 0]
    assert not any(map(psutil.pid_exists, within))
