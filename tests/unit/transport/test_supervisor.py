"""What the supervisor says of workers that are late, and of those that are no processes of this machine."""

from __future__ import annotations

import contextlib
import os
import struct
from multiprocessing.connection import Connection
from socket import socketpair

import pytest

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.transport.supervisor import Supervisor, Worker


class Job:
    """A handle whose end is a descriptor, and for which nobody should wait."""

    pid = exitcode = None

    def __init__(self):
        self.sentinel, self._end = os.pipe()
        self.num_signals = 0

    def join(self, timeout=None):
        pass

    def terminate(self):
        self.num_signals += 1

    kill = terminate

    def end(self):
        if self.exitcode is None:
            self.exitcode = 1
            os.close(self._end)


class Board(Supervisor):
    """With a clock by hand: `now`. `stack` closes it, and the workers' ends and jobs."""

    def __init__(self, stack, join_timeout=None):
        self.now, self.ends, self._stack = 100.0, {}, stack
        super().__init__(60.0, 20.0, 60.0, "worker {} (job 7)".format, join_timeout, lambda: self.now)
        stack.callback(self.close)
        bell, self._ringer = os.pipe()
        for end in (bell, self._ringer):
            stack.callback(os.close, end)
        self.watch(bell, lambda: None)

    def worker(self, index):
        return self.workers.get(index) or self.add(Worker(index))

    def granted(self, index):
        super().granted(self.worker(index))

    def delivered(self, index):
        super().delivered(self.worker(index))

    def connect(self, index):
        ours, self.ends[index] = (Connection(end.detach()) for end in socketpair())
        self._stack.callback(self.ends[index].close)
        super().connect(self.worker(index), ours)

    def say(self, worker):
        self.ends[worker].send_bytes(b"word")

    def begin(self, worker):
        """To say something."""
        os.write(self.ends[worker].fileno(), b"\0\0\0\5w")

    def ring(self, worker):
        """What is watched may tell of the worker."""
        os.write(self._ringer, b"x")

    def run(self, worker):
        job = Job()
        self._stack.callback(os.close, job.sentinel)
        self._stack.callback(job.end)
        self.attach(self.worker(worker), job)
        return job

    def hear(self):
        """What `events` yields, without blocking."""
        return [(worker.index, message) for worker, message in self.events(0.0)]


@pytest.fixture
def board():
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: Board(stack, *arguments)


# Worker 0 has joined; worker 1 waits in a queue.
@pytest.mark.parametrize(
    ("steps", "late"),
    [
        # The time at which each step is taken, the trainer looking every second until then; then whom `events` blames
        # at the last time, with the knob.
        ([(0, "granted", 0), (59.9,)], None),
        ([(0, "granted", 0), (60,)], (0, "collector.start_timeout_s=60")),
        ([(0, "granted", 0), (1, "delivered", 0), (50, "granted", 0), (69.9,)], None),
        (
            [(0, "granted", 0), (1, "delivered", 0), (50, "granted", 0), (70,)],
            (0, "collector.worker_timeout_s=20"),
        ),
        # The second of two that it owes counts from the first one's delivery.
        ([(0, "granted", 0), (1, "granted", 0), (50, "delivered", 0), (69.9,)], None),
        (
            [(0, "granted", 0), (1, "granted", 0), (50, "delivered", 0), (70,)],
            (0, "collector.worker_timeout_s=20"),
        ),
        # A worker that may take long, and that owes since longer, hides none that may not.
        ([(0, "granted", 1), (1, "granted", 0), (61,)], (0, "collector.start_timeout_s=60")),
        ([(0, "granted", 1), (3599,)], None),
        ([(0, "granted", 1), (3600,)], (1, "launcher.queue_timeout_s=3600")),
        # One that has joined since has another limit, from when that is noticed.
        ([(0, "granted", 1), (3500, "connect", 1), (3600,), (3659,)], None),
        ([(0, "granted", 1), (3500, "connect", 1), (3600,), (3660,)], (1, "collector.start_timeout_s=60")),
        # That the trainer was stopped until then counts for a quarter of the shorter timeout.
        ([(0, "granted", 0), (1000, "wakes")], None),
        ([(0, "granted", 0), (54,), (1000, "wakes"), (1000.9,)], None),
        ([(0, "granted", 0), (54,), (1000, "wakes"), (1001,)], (0, "collector.start_timeout_s=60")),
        # What the worker has said counts, however late the trainer listens.
        ([(0, "granted", 0), (55, "say", 0), (1000, "wakes")], None),
        ([(0, "granted", 0), (55, "ring", 0), (1000, "wakes")], None),
        # A part of a message is none.
        ([(0, "granted", 0), (59, "begin", 0), (60,)], (0, "collector.start_timeout_s=60")),
        # But it is late where others always have something to say.
        ([(0, "connect", 2), (0, "granted", 0), (60, "say", 2), (60,)], (0, "collector.start_timeout_s=60")),
    ],
)
def test_who_is_late_and_by_which_timeout(board, steps, late):
    board = board(lambda worker: ("launcher.queue_timeout_s", 3600.0))
    board.connect(0)
    for at, *step in steps:
        while step != ["wakes"] and board.now < 99.0 + at:
            board.now += 1.0
            board.hear()
        board.now = 100.0 + at
        if step in ([], ["wakes"]):
            errors = [(worker, error) for worker, error in board.hear() if isinstance(error, Exception)]
        else:
            method, worker = step
            getattr(board, method)(worker)
    assert [worker for worker, _ in errors] == ([] if late is None else [late[0]])
    for _, error in errors:
        assert isinstance(error, WorkerTimeout)
        what = "has not joined" if "queue_timeout_s" in late[1] else "delivered nothing"
        assert f" {what} for " in str(error)
        assert f"({late[1]})" in str(error)


@pytest.mark.parametrize(
    ("has_joined", "message", "num_signals"),
    [
        (False, "worker 3 (job 7) ended before it had joined the trainer.", 0),
        # It is reported without waiting for the job, which is ended afterwards.
        (True, "worker 3 (job 7) is gone: its connection broke without an error", 2),
    ],
)
def test_the_end_of_a_job_is_noticed_at_once(board, has_joined, message, num_signals):
    board = board()
    job = board.run(3)
    board.granted(3)
    if has_joined:
        board.connect(3)
        board.ends[3].close()
    else:
        job.end()
    ((worker, error),) = board.hear()
    assert isinstance(error, WorkerDied)
    assert str(error).startswith(message)
    board.remove(board.worker(worker))
    assert job.num_signals == num_signals


def test_a_message_of_which_a_part_has_come_holds_up_nobody(board):
    """It may come in any parts, and one of the lost worker is an end like any other."""
    board = board()
    long, words = b"y" * 3_000_000, [b"", b"word", b"z" * 70_000]
    for worker in (0, 1):
        board.connect(worker)
        board.granted(worker)
    parts = [struct.pack("!iQ", -1, len(long)), long, *(struct.pack("!i", len(each)) + each for each in words)]
    sent, heard = b"".join(parts), []
    while sent:
        count = os.write(board.ends[0].fileno(), sent[:77_777])
        sent = sent[count:]
        heard += board.hear()
        board.say(1)
        assert (1, b"word") in board.hear()
    while len(heard) < 4:
        heard += board.hear()
    assert heard == [(0, long), *((0, each) for each in words)]
    os.write(board.ends[0].fileno(), b"\0\0\0\5half")
    assert board.hear() == []
    board.ends[0].close()
    ((worker, error),) = board.hear()
    assert (worker, type(error)) == (0, WorkerDied)


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
