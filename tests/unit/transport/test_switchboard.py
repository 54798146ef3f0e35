"""What the switchboard says of workers that are no processes of this machine."""

from __future__ import annotations

import os
import time
from multiprocessing import Pipe

import pytest

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.transport.switchboard import Switchboard


class Job:
    """A handle whose end is a descriptor, and which nobody should wait for."""

    pid = None

    def __init__(self):
        self.sentinel, self._end = os.pipe()
        self.exitcode = None
        self.released = 0

    def join(self, timeout=None):
        pass

    def terminate(self):
        self.released += 1

    kill = terminate

    def end(self):
        self.exitcode = 1
        os.close(self._end)


@pytest.fixture
def board():
    board = Switchboard(60.0, 60.0, 60.0, lambda worker: f"worker {worker} (job 7)")
    yield board
    board.close()


def test_a_job_that_ends_before_it_joins_is_noticed_at_once(board):
    job = Job()
    board.attach(3, job)
    board.owes(3)
    job.end()
    ((worker, error),) = board.events()
    os.close(job.sentinel)
    assert worker == 3
    assert isinstance(error, WorkerDied)
    assert str(error) == "worker 3 (job 7) ended before it had joined the trainer."
    assert job.released == 0


def test_a_broken_connection_is_reported_without_waiting_for_the_job(board):
    job = Job()
    ours, theirs = Pipe()
    board.attach(3, job)
    board.plug(3, ours)
    board.owes(3)
    theirs.close()
    ((worker, error),) = board.events()
    assert str(error).startswith("worker 3 (job 7) is gone: its connection broke without an error")
    board.forget(worker)
    assert job.released == 2
    job.end()
    os.close(job.sentinel)


def test_a_worker_that_may_take_long_hides_none_that_may_not():
    board = Switchboard(60.0, 0.2, 1.0, str, lambda worker: ("launcher.queue_timeout_s", 3600.0))
    ours, theirs = Pipe()
    board.owes(0)
    board.plug(1, ours)
    for step in (board.owes, board.delivered, board.owes):
        step(1)
    ((worker, error),) = board.events(60.0)
    assert worker == 1
    assert isinstance(error, WorkerTimeout)
    board.close()
    theirs.close()


def test_a_worker_that_has_got_further_has_another_limit():
    limits = [("launcher.queue_timeout_s", 0.05), ("collector.start_timeout_s", 1.0)]
    board = Switchboard(60.0, 60.0, 1.0, str, lambda worker: limits[-1 if has_started else 0])
    has_started = False
    began = time.monotonic()
    board.owes(0)
    has_started = True
    assert list(board.events()) == []
    ((_, error),) = board.events()
    assert "collector.start_timeout_s=1" in str(error)
    assert time.monotonic() - began >= 1.05
    board.close()


def test_nobody_is_late_while_what_is_watched_may_tell_of_it():
    board = Switchboard(0.01, 60.0, 1.0, str)
    bell, ringer = os.pipe()
    board.watch(bell, "bell")
    board.owes(0)
    os.write(ringer, b"x")
    time.sleep(0.1)
    assert list(board.events()) == [("bell", None)]
    os.read(bell, 1)
    ((worker, error),) = board.events()
    assert worker == 0
    assert isinstance(error, WorkerTimeout)
    board.close()
    os.close(bell)
    os.close(ringer)


class Hanging(Job):
    """Does not end by itself; who waits for it is interrupted."""

    is_killed = False

    def join(self, timeout=None):
        raise KeyboardInterrupt

    def kill(self):
        self.is_killed = True


def test_an_interrupted_close_leaves_nobody_running(board):
    hanging = Hanging()
    board.attach(0, hanging)
    with pytest.raises(KeyboardInterrupt):
        board.close()
    assert hanging.is_killed
    hanging.end()
    os.close(hanging.sentinel)
    board._handles.clear()
