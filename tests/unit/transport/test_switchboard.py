"""What the switchboard says of workers that are late, and of those that are no processes of this machine."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from socket import socketpair

import pytest

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.transport.switchboard import Switchboard


class Job:
    """A handle whose end is a descriptor, and for which nobody should wait."""

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


class Board(Switchboard):
    """With a clock by hand: `now`. `close` closes the workers' ends and jobs too."""

    def __init__(self, join_timeout=None, start_s=60.0, work_s=20.0):
        self.now = 100.0
        super().__init__(start_s, work_s, 60.0, "worker {} (job 7)".format, join_timeout, lambda: self.now)
        self.ends, self.jobs = {}, []

    def connect(self, worker):
        ours, theirs = (Connection(end.detach()) for end in socketpair())
        self.ends[worker] = theirs
        self.plug(worker, ours)

    def run(self, worker):
        self.jobs.append(Job())
        self.attach(worker, self.jobs[-1])
        return self.jobs[-1]

    def hear(self):
        """What `events` yields, without blocking."""
        return list(self.events(0.0))


@pytest.fixture
def board():
    boards = []

    def board(*args, **kwargs):
        boards.append(Board(*args, **kwargs))
        return boards[-1]

    yield board
    for each in boards:
        for job in each.jobs:
            if job.exitcode is None:
                job.end()
        each.close()
        for end in each.ends.values():
            end.close()
        for job in each.jobs:
            os.close(job.sentinel)


def owe(board, worker):
    board.owes(worker)


def deliver(board, worker):
    board.delivered(worker)


def say(board, worker):
    board.ends[worker].send_bytes(b"word")


def connect(board, worker):
    board.connect(worker)


# Worker 0 has joined; worker 1 waits in a queue.
@pytest.mark.parametrize(
    ("steps", "late"),
    [
        # The time at which each step is taken, then whom `events` blames at the last time, with the knob.
        ([(0, owe, 0), (59.9,)], None),
        ([(0, owe, 0), (60,)], (0, "collector.start_timeout_s=60")),
        ([(0, owe, 0), (1, deliver, 0), (50, owe, 0), (69.9,)], None),
        ([(0, owe, 0), (1, deliver, 0), (50, owe, 0), (70,)], (0, "collector.worker_timeout_s=20")),
        # The second of two that it owes counts from the first one's delivery.
        ([(0, owe, 0), (1, owe, 0), (50, deliver, 0), (69.9,)], None),
        ([(0, owe, 0), (1, owe, 0), (50, deliver, 0), (70,)], (0, "collector.worker_timeout_s=20")),
        # A worker that may take long, and that owes since longer, hides none that may not.
        ([(0, owe, 1), (1, owe, 0), (61,)], (0, "collector.start_timeout_s=60")),
        ([(0, owe, 1), (3599,)], None),
        ([(0, owe, 1), (3600,)], (1, "launcher.queue_timeout_s=3600")),
        # One that has joined since has another limit, from when that is noticed.
        ([(0, owe, 1), (3500, connect, 1), (3600,), (3659,)], None),
        ([(0, owe, 1), (3500, connect, 1), (3600,), (3660,)], (1, "collector.start_timeout_s=60")),
        # What it has said counts, however late the trainer listens.
        ([(0, owe, 0), (1, say, 0), (1000,)], None),
        # But it is late where others always have something to say.
        ([(0, connect, 2), (0, owe, 0), (60, say, 2), (60,)], (0, "collector.start_timeout_s=60")),
    ],
)
def test_who_is_late_and_by_which_timeout(board, steps, late):
    board = board(lambda worker: ("launcher.queue_timeout_s", 3600.0))
    board.connect(0)
    errors = []
    for at, *step in steps:
        board.now = 100.0 + at
        if step:
            step[0](board, step[1])
        else:
            errors = [(worker, error) for worker, error in board.hear() if isinstance(error, Exception)]
    assert [worker for worker, _ in errors] == ([] if late is None else [late[0]])
    for _, error in errors:
        assert isinstance(error, WorkerTimeout)
        assert f"({late[1]})" in str(error)


def test_nobody_is_late_while_what_is_watched_may_tell_of_it(board):
    board = board()
    bell, ringer = os.pipe()
    board.watch(bell, "bell")
    board.owes(0)
    os.write(ringer, b"x")
    board.now += 1000
    assert board.hear() == [("bell", None)]
    os.read(bell, 1)
    ((worker, error),) = board.hear()
    assert worker == 0
    assert isinstance(error, WorkerTimeout)
    os.close(bell)
    os.close(ringer)


def test_a_job_that_ends_before_it_joins_is_noticed_at_once(board):
    board = board()
    job = board.run(3)
    board.owes(3)
    job.end()
    ((worker, error),) = board.hear()
    assert worker == 3
    assert isinstance(error, WorkerDied)
    assert str(error) == "worker 3 (job 7) ended before it had joined the trainer."
    assert job.released == 0


def test_a_broken_connection_is_reported_without_waiting_for_the_job(board):
    board = board()
    job = board.run(3)
    board.connect(3)
    board.owes(3)
    board.ends[3].close()
    ((worker, error),) = board.hear()
    assert str(error).startswith("worker 3 (job 7) is gone: its connection broke without an error")
    board.forget(worker)
    assert job.released == 2


def test_an_interrupted_close_leaves_no_job_running(board, monkeypatch):
    board = board()
    job, interruptions = board.run(0), [KeyboardInterrupt]

    def join(timeout=None):
        if interruptions:
            raise interruptions.pop()

    monkeypatch.setattr(job, "join", join)
    monkeypatch.setattr(job, "kill", job.end)
    with pytest.raises(KeyboardInterrupt):
        board.close()
    assert job.exitcode == 1
