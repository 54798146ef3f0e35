"""Transports between processes: what is particular to workers that are processes. They die, hang, exit; each time the
trainer is told by name, and nothing stays."""

from __future__ import annotations

import os
import re
import signal
import time
from multiprocessing.connection import wait

import psutil
import pytest
from worlds import toyworker
from worlds.toyworker import Fault, arrive, lose, slab_spec, writer

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.transport.base import Arrival, Departure

# Workers of a short timeout hang in a batch after which none is asked for, so that no slow one is taken for a hung one.
HANGS_NEXT = Fault("hang", at=1)


@pytest.fixture(params=["shared_memory", "gloo", "rpc"])
def connect(request):
    made = []

    def connect(fault=None, num_workers=1, num_slots=1, start=60.0, work=60.0, close=30.0):
        spec = slab_spec(num_workers, num_slots)
        fault = dict(enumerate(fault)) if isinstance(fault, list) else fault
        transport, start_worker = toyworker.place(request.param, spec, fault, start, work, close)
        made.append(transport)
        transport.start_again = start_worker
        transport.publish(writer(1))
        return transport, [start_worker(worker) for worker in range(num_workers)]

    yield connect
    while made:
        made.pop().close()


def deliver(transport, count, worker=0):
    for _ in range(count):
        transport.grant(worker, 0)
        arrive(transport)


def test_a_worker_killed_from_outside_is_named_with_pid_and_signal(connect):
    transport, (handle,) = connect()
    deliver(transport, 1)
    os.kill(handle.pid, signal.SIGKILL)
    transport.grant(0, 0)
    gone = lose(transport)
    assert isinstance(gone, WorkerDied)
    assert re.search(rf"worker 0 \(pid {handle.pid}\) was killed by signal 9", str(gone))


def test_a_worker_that_leaves_without_a_word_is_named_with_its_exit_code(connect):
    transport, (handle,) = connect("exit")
    deliver(transport, 2)
    transport.grant(0, 0)
    gone = lose(transport)
    assert isinstance(gone, WorkerDied)
    assert re.search(rf"pid {handle.pid}\) ended with exit code 3", str(gone))


def test_a_death_is_noticed_at_once_while_waiting_for_others(connect):
    transport, (first, _) = connect([None, "hang"], num_workers=2, close=0.2)
    deliver(transport, 2, worker=1)
    transport.grant(1, 0)
    os.kill(first.pid, signal.SIGKILL)
    started = time.monotonic()
    gone = lose(transport)
    assert isinstance(gone, WorkerDied)
    assert re.search("worker 0", str(gone))
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("publishes", [False, True])
def test_a_worker_that_is_gone_is_granted_nothing_more(connect, publishes):
    """Its end is noticed together with its last batch, or while weights are published, and told afterwards."""
    transport, (handle,) = connect(Fault("raise"), num_slots=2)
    deliver(transport, 1)
    for slot in range(2):
        transport.grant(0, slot)
    assert wait([handle.sentinel], 60)
    if publishes:
        transport.publish(writer(2))
        transport.grant(0, 0)
    while isinstance(event := arrive(transport), Arrival):
        transport.grant(0, event.slot)
    assert isinstance(event, Departure)
    transport.start_again(0)
    for slot in range(2):
        transport.grant(0, slot)
    assert [arrive(transport).slot for _ in range(2)] == [0, 1]
    with pytest.raises(RuntimeError, match="nothing to receive"):
        transport.receive()


def test_a_worker_that_never_starts_names_start_timeout(connect):
    transport, _ = connect(Fault("hang", at=0), start=0.001, close=0.2)
    transport.grant(0, 0)
    gone = lose(transport)
    assert isinstance(gone, WorkerTimeout)
    assert re.search(
        r"worker 0 (delivered nothing|has not joined) for 0.001 s \(collector.start_timeout_s=0.001", str(gone)
    )


def test_a_hung_worker_names_worker_timeout(connect):
    transport, _ = connect(HANGS_NEXT, work=0.2, close=0.2)
    deliver(transport, 1)
    transport.grant(0, 0)
    gone = lose(transport)
    assert isinstance(gone, WorkerTimeout)
    assert re.search(r"collector.worker_timeout_s=0.2", str(gone))


def test_a_hung_worker_is_noticed_while_another_always_delivers(connect):
    transport, _ = connect([HANGS_NEXT, None], num_workers=2, num_slots=2, work=2.0, close=0.2)
    for worker in range(2):
        deliver(transport, 1, worker)
    transport.grant(0, 0)
    for slot in range(2):
        transport.grant(1, slot)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and isinstance(event := arrive(transport), Arrival):
        transport.grant(event.worker, event.slot)
        # The trainer learns for longer than a batch takes, so that one is always ready.
        time.sleep(0.02)
    assert isinstance(event, Departure)
    assert event.worker == 0
    assert isinstance(event.error, WorkerTimeout)


def test_a_trainer_that_learns_for_longer_than_the_timeout_blames_nobody(connect, wait_until):
    transport, _ = connect(num_workers=2, work=1.0)
    for worker in range(2):
        deliver(transport, 1, worker)
    for worker in range(2):
        transport.grant(worker, 0)
    time.sleep(1.5)  # the trainer's learning, not a wait for something
    lines = transport._switchboard._connections.values()
    wait_until(lambda: all(line.poll() for line in lines), what="both have delivered meanwhile")
    assert sorted(arrive(transport).worker for _ in range(2)) == [0, 1]


def test_closing_kills_a_hung_worker(connect, tmp_path, wait_until):
    sign = tmp_path / "hangs"
    transport, (handle,) = connect(Fault("hang", sign=str(sign)), close=0.2)
    deliver(transport, 2)
    transport.grant(0, 0)
    wait_until(sign.exists, what="the worker hangs")
    transport.close()
    assert handle.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
    assert not psutil.pid_exists(handle.pid)


def test_a_worker_that_sends_while_the_trainer_closes_ends_quietly(connect, capfd):
    for _ in range(4):
        transport, handles = connect(num_workers=2, num_slots=2, close=60.0)
        for slot in range(2):
            for worker in range(2):
                transport.grant(worker, slot)
        for _ in range(3):
            arrive(transport)
        transport.close()
        assert [handle.exitcode for handle in handles] == [0, 0]
    said = capfd.readouterr().err.splitlines()
    # torch says of every RPC agent that has gone that it has.
    assert [line for line in said if "tensorpipe_agent.cpp" not in line] == []
