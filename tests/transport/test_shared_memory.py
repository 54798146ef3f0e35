"""Shared memory: what is particular to workers that are processes. They die, hang, exit; each time the trainer is told
by name, and nothing stays."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
import toyworker
from toyworker import slab_spec, writer

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.launcher.local import LocalLauncher
from collectx.transport.shared_memory import SharedMemoryTransport


@pytest.fixture
def connect():
    made = []

    def connect(fault=None, num_workers=1, num_slots=1, start_timeout_s=30.0, worker_timeout_s=30.0):
        launcher = LocalLauncher(1)
        transport = SharedMemoryTransport(
            slab_spec(num_workers, num_slots), start_timeout_s, worker_timeout_s, 0.2, launcher.describe
        )
        made.append(transport)
        transport.publish(writer(1))
        faults = fault if isinstance(fault, list) else [fault] * num_workers
        handles = launcher.start(
            toyworker.serve, [(worker, transport.link(worker), faults[worker]) for worker in range(num_workers)]
        )
        transport.attach(handles)
        return transport, handles

    yield connect
    while made:
        made.pop().close()


def deliver(transport, count, worker=0):
    for _ in range(count):
        transport.grant(worker, 0)
        transport.receive()


def test_a_worker_killed_from_outside_is_named_with_pid_and_signal(connect):
    transport, (handle,) = connect()
    deliver(transport, 1)
    os.kill(handle.pid, signal.SIGKILL)
    transport.grant(0, 0)
    with pytest.raises(WorkerDied, match=rf"worker 0 \(pid {handle.pid}\) was killed by signal 9"):
        transport.receive()


def test_a_worker_that_leaves_without_a_word_is_named_with_its_exit_code(connect):
    transport, (handle,) = connect("exit")
    deliver(transport, 2)
    transport.grant(0, 0)
    with pytest.raises(WorkerDied, match=rf"pid {handle.pid}\) ended with exit code 3"):
        transport.receive()


def test_a_death_is_noticed_at_once_while_waiting_for_others(connect):
    transport, (first, _) = connect([None, "hang"], num_workers=2)
    deliver(transport, 2, worker=1)
    transport.grant(1, 0)
    os.kill(first.pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="worker 0"):
        transport.receive()
    assert time.monotonic() - started < 10


def test_a_worker_that_never_starts_names_start_timeout(connect):
    transport, _ = connect(start_timeout_s=0.001)
    transport.grant(0, 0)
    with pytest.raises(
        WorkerTimeout, match=r"worker 0 delivered nothing for 0.001 s \(collector.start_timeout_s=0.001"
    ):
        transport.receive()


def test_a_hung_worker_names_worker_timeout(connect):
    transport, _ = connect("hang", worker_timeout_s=0.2)
    deliver(transport, 2)
    transport.grant(0, 0)
    with pytest.raises(WorkerTimeout, match=r"collector.worker_timeout_s=0.2"):
        transport.receive()


def test_a_hung_worker_is_noticed_while_another_always_delivers(connect):
    transport, _ = connect(["hang", None], num_workers=2, num_slots=2, worker_timeout_s=0.3)
    deliver(transport, 2, worker=0)
    deliver(transport, 1, worker=1)
    transport.grant(0, 0)
    for slot in range(2):
        transport.grant(1, slot)
    deadline = time.monotonic() + 10

    def consume_slowly():
        while time.monotonic() < deadline:
            arrival = transport.receive()
            transport.grant(arrival.worker, arrival.slot)
            # The trainer learns for longer than a batch takes, so that one is always ready.
            time.sleep(0.02)

    with pytest.raises(WorkerTimeout, match="worker 0"):
        consume_slowly()


def test_a_trainer_that_learns_for_longer_than_the_timeout_blames_nobody(connect):
    transport, _ = connect(num_workers=2, num_slots=2, worker_timeout_s=0.3)
    for worker in range(2):
        deliver(transport, 1, worker)
    for worker in range(2):
        for slot in range(2):
            transport.grant(worker, slot)
    time.sleep(0.6)  # the trainer's learning, not a wait for something
    assert sorted(transport.receive().worker for _ in range(4)) == [0, 0, 1, 1]


def test_closing_kills_a_hung_worker(connect):
    transport, (handle,) = connect("hang")
    deliver(transport, 2)
    transport.grant(0, 0)
    transport.close()
    assert handle.exitcode == -signal.SIGTERM
    assert not psutil.pid_exists(handle.pid)


def test_a_worker_that_sends_while_the_trainer_closes_ends_quietly(connect, capfd):
    for _ in range(10):
        transport, handles = connect(num_workers=2, num_slots=2)
        for slot in range(2):
            for worker in range(2):
                transport.grant(worker, slot)
        transport.receive()
        transport.close()
        assert [handle.exitcode for handle in handles] == [0, 0]
    assert capfd.readouterr().err == ""
