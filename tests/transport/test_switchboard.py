"""What the switchboard says of workers that are no processes of this machine."""

from __future__ import annotations

import os
from multiprocessing import Pipe

import pytest

from collectx.errors import WorkerDied
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
