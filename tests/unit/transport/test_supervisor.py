"""The supervisor: workers that are late, and workers that are not processes of this machine."""

import contextlib
import os
import selectors
import struct
from array import array
from multiprocessing.connection import Connection
from socket import socketpair
from types import SimpleNamespace

import pytest
from user_code.toyworker import batch_spec

from collectx.config.problem import Names, naming
from collectx.errors import WorkerDied, WorkerTimeout
from collectx.progress import STEPS
from collectx.transport.connections import MessageReader
from collectx.transport.peer import JoinState, Peer, death_error
from collectx.transport.shared_memory import SharedMemoryTransport
from collectx.transport.supervisor import Supervisor


class Job:
    """A handle of a process on another machine: `end` makes its sentinel readable."""

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


class ManualSupervisor(Supervisor):
    """A supervisor with a manual clock, `now`, whose methods take indices. `stack` closes it, the workers' ends, and
    jobs."""

    def __init__(self, stack, join_timeout=None):
        self.now, self.ends, self._stack = 100.0, {}, stack
        super().__init__(
            60.0, 20.0, 60.0, lambda index, handle: f"worker {index} (job 7)", join_timeout, lambda: self.now, 256
        )
        stack.callback(self.close)
        watched, self._wakeup = os.pipe()
        for end in (watched, self._wakeup):
            stack.callback(os.close, end)
        self.watch(watched, lambda: None)

    def worker(self, index):
        return self.workers.get(index) or self.add(Peer(index))

    def granted(self, index):
        super().granted(self.worker(index))

    def delivered(self, index):
        super().delivered(self.worker(index))

    def reply(self, index):
        self.replied(self.worker(index))

    def connect(self, index):
        ours, self.ends[index] = (Connection(end.detach()) for end in socketpair())
        self._stack.callback(self.ends[index].close)
        super().connect(self.worker(index), ours)

    def step(self, index):
        steps, *rest = self.worker(index).progress or (0, 0, 0)
        self.progressed(self.worker(index), (steps + 1, *rest))

    def send(self, worker):
        self.ends[worker].send_bytes(b"word")

    def send_part(self, worker):
        """Sends a part of a message."""
        os.write(self.ends[worker].fileno(), b"\0\0\0\5w")

    def wake(self, worker):
        """Makes the watched descriptor readable."""
        os.write(self._wakeup, b"x")

    def run(self, worker):
        job = Job()
        self._stack.callback(os.close, job.sentinel)
        self._stack.callback(job.end)
        self.attach(self.worker(worker), job)
        return job

    def poll(self):
        """Returns the events, without blocking."""
        return [(worker.index, message) for worker, message in self.events(0.0)]


@pytest.fixture
def supervisor():
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: ManualSupervisor(stack, *arguments)


# Worker 0 has joined; worker 1 waits in a queue.
@pytest.mark.parametrize(
    ("steps", "late"),
    [
        # The time at which each step is taken, the trainer looking every second until then; then whom `events` blames
        # at the last time, with the knob.
        ([(0, "granted", 0), (59.9,)], None),
        ([(0, "granted", 0), (60,)], (0, "collector.start_timeout_s=60")),
        ([(0, "granted", 0), (1, "delivered", 0), (50, "granted", 0), (69.9,)], None),
        ([(0, "granted", 0), (1, "delivered", 0), (50, "granted", 0), (70,)], (0, "collector.worker_timeout_s=20")),
        # A reply is no batch: the first one is still to come.
        ([(0, "granted", 0), (1, "reply", 0), (50, "granted", 0), (109.9,)], None),
        ([(0, "granted", 0), (1, "reply", 0), (50, "granted", 0), (110,)], (0, "collector.start_timeout_s=60")),
        # The second of two that it owes counts from the first one's delivery.
        ([(0, "granted", 0), (1, "granted", 0), (50, "delivered", 0), (69.9,)], None),
        ([(0, "granted", 0), (1, "granted", 0), (50, "delivered", 0), (70,)], (0, "collector.worker_timeout_s=20")),
        # A step lets the timeout begin again; not without a grant. From the first step on, it is that of later batches.
        ([(0, "granted", 0), (50, "step", 0), (69.9,)], None),
        ([(0, "granted", 0), (50, "step", 0), (70,)], (0, "collector.worker_timeout_s=20")),
        ([(0, "granted", 0), (1, "delivered", 0), (2, "step", 0), (50, "granted", 0), (69.9,)], None),
        (
            [(0, "granted", 0), (1, "delivered", 0), (2, "granted", 0), (21, "step", 0), (41,)],
            (0, "worker_timeout_s=20"),
        ),
        # A worker that may take long, and that owes since longer, hides none that may not.
        ([(0, "granted", 1), (1, "granted", 0), (61,)], (0, "collector.start_timeout_s=60")),
        ([(0, "granted", 1), (3599,)], None),
        ([(0, "granted", 1), (3600,)], (1, "launcher.queue_timeout_s=3600")),
        # One that has joined since has another limit, from when that is noticed.
        ([(0, "granted", 1), (3500, "connect", 1), (3600,), (3659,)], None),
        ([(0, "granted", 1), (3500, "connect", 1), (3600,), (3660,)], (1, "collector.start_timeout_s=60")),
        # That the trainer was stopped until then counts for a quarter of the shorter timeout.
        ([(0, "granted", 0), (1000, "resume")], None),
        ([(0, "granted", 0), (54,), (1000, "resume"), (1000.9,)], None),
        ([(0, "granted", 0), (54,), (1000, "resume"), (1001,)], (0, "collector.start_timeout_s=60")),
        # What the worker has said counts, however late the trainer listens.
        ([(0, "granted", 0), (55, "send", 0), (1000, "resume")], None),
        ([(0, "granted", 0), (55, "wake", 0), (1000, "resume")], None),
        # A part of a message is none.
        ([(0, "granted", 0), (59, "send_part", 0), (60,)], (0, "collector.start_timeout_s=60")),
        # But it is late where others always have something to say.
        ([(0, "connect", 2), (0, "granted", 0), (60, "send", 2), (60,)], (0, "collector.start_timeout_s=60")),
    ],
)
def test_who_is_late_and_by_which_timeout(supervisor, steps, late):
    supervisor = supervisor(lambda worker, handle: ("launcher.queue_timeout_s", 3600.0))
    supervisor.connect(0)
    for at, *step in steps:
        while step != ["resume"] and supervisor.now < 99.0 + at:
            supervisor.now += 1.0
            supervisor.poll()
        supervisor.now = 100.0 + at
        if step in ([], ["resume"]):
            errors = [(worker, error) for worker, error in supervisor.poll() if isinstance(error, Exception)]
        else:
            method, worker = step
            getattr(supervisor, method)(worker)
    assert [worker for worker, _ in errors] == ([] if late is None else [late[0]])
    for _, error in errors:
        assert isinstance(error, WorkerTimeout)
        what = "has not joined after" if "queue_timeout_s" in late[1] else "made no progress for"
        assert f" {what} " in str(error)
        assert f"{late[1]})" in str(error)


@pytest.mark.parametrize("has_delivered", [False, True])
def test_what_a_worker_counts_in_memory_is_progress_and_is_said(supervisor, has_delivered):
    supervisor = supervisor()
    supervisor.connect(0)
    counts = supervisor.worker(0).counts = memoryview(array("q", [0, 8, 0]))
    supervisor.granted(0)
    if has_delivered:
        counts[STEPS] = 255  # of its last batch
        supervisor.delivered(0)
        supervisor.granted(0)
    errors = []
    for second in range(1, 1000):
        supervisor.now += 1.0
        if second <= 12:
            counts[STEPS] = second
        if errors := supervisor.poll():
            break
    ((_, error),) = errors
    assert second in (32, 33)
    assert "made no progress for 20 s (collector.worker_timeout_s=20). It stepped 12 of 256 times, 1 s a step." in str(
        error
    )


@pytest.mark.parametrize(
    ("has_joined", "message", "num_signals"),
    [
        (False, "worker 3 (job 7) ended before it joined the trainer.", 0),
        # It is reported without waiting for the job, which is ended afterwards.
        (True, "worker 3 (job 7) is gone: its connection broke before it reported an error", 2),
    ],
)
def test_the_end_of_a_job_is_noticed_at_once(supervisor, has_joined, message, num_signals):
    supervisor = supervisor()
    job = supervisor.run(3)
    supervisor.granted(3)
    if has_joined:
        supervisor.connect(3)
        supervisor.ends[3].close()
    else:
        job.end()
    ((worker, error),) = supervisor.poll()
    assert isinstance(error, WorkerDied)
    assert str(error).startswith(message)
    supervisor.remove(supervisor.worker(worker))
    assert job.num_signals == num_signals


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_a_process_sent_before_its_end_is_read_first(supervisor, is_closed):
    supervisor = supervisor()
    job, worker = supervisor.run(3), supervisor.worker(3)
    supervisor.connect(3)
    assert not supervisor.has_message(worker)
    for _ in range(2):
        supervisor.send(3)
    assert supervisor.has_message(worker)
    if is_closed:
        supervisor.ends[3].close()
    job.end()
    *words, (_, error) = supervisor.poll()
    assert words == [(3, b"word"), (3, b"word")]
    assert isinstance(error, WorkerDied)
    supervisor.remove(worker)
    assert supervisor.poll() == []


def test_a_message_to_a_dead_worker_is_no_error(supervisor):
    supervisor = supervisor()
    supervisor.connect(0)
    Supervisor.send(supervisor, supervisor.worker(0), b"hello")
    assert supervisor.ends[0].recv_bytes() == b"hello"
    supervisor.ends[0].close()
    for _ in range(3):
        Supervisor.send(supervisor, supervisor.worker(0), b"hello")
    ((worker, error),) = supervisor.poll()
    assert (worker, type(error)) == (0, WorkerDied)


def test_a_worker_that_reads_nothing_gets_all_messages_later(supervisor):
    supervisor = supervisor()
    supervisor.connect(0)
    words = [b"y" * 3_000_000, b"word", b""]
    for word in words:
        Supervisor.send(supervisor, supervisor.worker(0), word)
    reader, received = MessageReader(supervisor.ends[0]), []
    supervisor.send_part(0)
    while len(received) < 3:
        received += reader.read()
        assert supervisor.poll() == []
    assert received == words
    Supervisor.send(supervisor, supervisor.worker(0), words[0])
    supervisor.ends[0].close()
    ((worker, error),) = supervisor.poll()
    assert (worker, type(error)) == (0, WorkerDied)


def test_a_process_can_be_killed_while_its_worker_is_removed(supervisor):
    """Another thread removes it, as the shutdown of a collector with a background thread does."""
    supervisor = supervisor()
    job = supervisor.run(3)
    during, worker = [], supervisor.worker(3)
    job.join = lambda timeout=None: during.append(worker.handle)
    supervisor.remove(worker)
    assert during == [job] * 3
    assert worker.handle is None


@pytest.mark.parametrize(("hangs", "waited_s"), [(True, 0.0), (False, 0.2)])
def test_a_worker_that_hangs_is_killed_at_once(supervisor, hangs, waited_s):
    """The waits for many workers that hang, one after the other, would add up."""
    supervisor = supervisor()
    job, waits = supervisor.run(3), []
    job.join = waits.append
    supervisor.remove(supervisor.worker(3), hangs)
    assert waits[0] == pytest.approx(waited_s, abs=0.1)


def test_a_message_of_which_a_part_has_come_holds_up_nobody(supervisor):
    """It may come in any parts, and one of the lost worker is an end like any other."""
    supervisor = supervisor()
    long, words = b"y" * 3_000_000, [b"", b"word", b"z" * 70_000]
    for worker in (0, 1):
        supervisor.connect(worker)
        supervisor.granted(worker)
    parts = [struct.pack("!iQ", -1, len(long)), long, *(struct.pack("!i", len(each)) + each for each in words)]
    rest, received = b"".join(parts), []
    while rest:
        count = os.write(supervisor.ends[0].fileno(), rest[:77_777])
        rest = rest[count:]
        received += supervisor.poll()
        assert not any(isinstance(message, Exception) for _, message in received)
        supervisor.send(1)
        assert (1, b"word") in supervisor.poll()
    for _ in range(100):  # what has not been read, in parts of any size
        received += supervisor.poll()
    assert received == [(0, long), *((0, each) for each in words)]
    os.write(supervisor.ends[0].fileno(), b"\0\0\0\5half")
    assert supervisor.poll() == []
    supervisor.ends[0].close()
    ((worker, error),) = supervisor.poll()
    assert (worker, type(error)) == (0, WorkerDied)


def test_an_interrupted_close_leaves_no_job_running(supervisor, monkeypatch):
    supervisor = supervisor()
    job, interruptions = supervisor.run(0), [KeyboardInterrupt]

    def join(timeout=None):
        if interruptions:
            raise interruptions.pop()

    monkeypatch.setattr(job, "join", join)
    monkeypatch.setattr(job, "kill", job.end)
    with pytest.raises(KeyboardInterrupt):
        supervisor.close()
    assert job.exitcode == 1


def test_only_processes_in_the_chosen_state_that_have_not_ended_are_killed(supervisor):
    supervised = supervisor()
    jobs = [supervised.run(index) for index in range(3)]
    supervised.connect(1)
    jobs[2].end()
    supervised.kill_workers(JoinState.EXPECTED, JoinState.PAIRING)
    assert [job.num_signals for job in jobs] == [1, 0, 0]


def test_workers_that_step_are_counted_wherever_their_counters_are():
    supervisor = Supervisor(60.0, 20.0, 1.0, lambda index, handle: "worker")
    steps = array("q", [0, 3, 0])
    supervisor.workers |= {0: Peer(0, counts=memoryview(steps)), 1: Peer(1, progress=(0, 3, 0)), 2: Peer(2)}
    assert supervisor.num_stepping == 0
    steps[STEPS] = 1
    assert supervisor.num_stepping == 1
    supervisor.workers[1].progress = (1, 3, 0)
    supervisor.workers[2].has_delivered = True
    assert supervisor.num_stepping == 3
    supervisor.workers.clear()
    supervisor.close()


BETWEEN_BATCHES = Peer(0, has_delivered=True, counts=memoryview(array("q", [0, 0, 0])), progress=(256, 3, 0))


@pytest.mark.parametrize(
    ("peer", "text"),
    [
        (Peer(0, progress=(12, 0, 0), began_s=10.0, progressed_s=22.0), "It stepped 12 of 256 times, 1 s a step"),
        # More steps than a batch has.
        (Peer(0, progress=(300, 0, 0), began_s=10.0, progressed_s=310.0), "It stepped 300 times, 1 s a step"),
        # The rate is told if the counts were read often enough for it.
        (Peer(0, progress=(20, 0, 0), began_s=10.0, progressed_s=14.9), "It stepped 20 of 256 times"),
        (Peer(0, progress=(20, 0, 0), began_s=10.0, progressed_s=15.0), "It stepped 20 of 256 times, 0.25 s a step"),
        (Peer(0), "It has delivered no batch, and finished no step of its envs"),
        (Peer(0, progress=(0, 0, 3), progressed_s=1.0), "It was importing modules, or making its first env"),
        (
            Peer(0, progress=(0, 3, 3), progressed_s=1.0),
            "It has made or reset envs 3 times, but has not stepped them yet",
        ),
        (Peer(0, has_delivered=True), "It has reported no step of its envs since its last batch"),
        (BETWEEN_BATCHES, "It has finished no step of its envs since its last batch"),
    ],
)
def test_what_a_worker_did_before_it_was_late_is_told(peer, text):
    assert peer.describe_progress(256) == text


def test_a_trainer_closes_the_ends_that_its_workers_have_inherited():
    """Otherwise each process that is started later inherits them too, and a worker's death is no end of file."""
    supervisor = Supervisor(60.0, 20.0, 60.0, lambda index, handle: f"worker {index}")
    with contextlib.closing(SharedMemoryTransport(batch_spec(), supervisor)) as transport:
        link = transport.link(0)
        os.fstat(link.fileno())  # it is open until the process has inherited it
        transport.attach(0, Job())
        with pytest.raises(OSError, match="closed"):
            link.fileno()


@pytest.mark.parametrize(
    ("described", "host", "text"),
    [
        ("worker 1", None, "worker 1"),
        ("worker 1", "gpu7", "worker 1 on gpu7"),
        ("worker 1 (job 3: RUNNING on gpu7)", "gpu7", "worker 1 (job 3: RUNNING on gpu7)"),
    ],
)
def test_a_worker_is_named_with_its_host_once(described, host, text):
    with contextlib.closing(Supervisor(60.0, 20.0, 60.0, lambda index, handle: described)) as supervisor:
        peer = Peer(1)
        peer.host = host
        assert supervisor.describe(peer) == text


def test_the_time_that_events_wait_counts(supervisor, monkeypatch):
    supervisor = supervisor()
    supervisor.connect(0)
    supervisor.granted(0)

    def select(selector, limit):
        supervisor.now += limit
        return []

    monkeypatch.setattr(selectors.DefaultSelector, "select", select)
    found = [len(list(supervisor.events())) for _ in range(61)]
    assert found == [0] * 59 + [1, 1]


def test_a_closed_supervisor_ends_all_and_gives_them_time(supervisor):
    supervisor, waits = supervisor(), []
    for index in range(2):
        supervisor.connect(index)
        job = supervisor.run(index)
        job.join = lambda timeout=None: waits.append(timeout)
    supervisor.worker(2)
    supervisor.close()
    assert all(end.poll(5) for end in supervisor.ends.values())
    assert [59.0 < wait <= 60.0 for wait in waits[:2]] == [True, True]
    assert [wait <= 1.0 for wait in waits[2:]] == [True] * 4
    assert [supervisor.worker(index).handle.num_signals for index in range(2)] == [2, 2]


def test_the_others_wait_a_second_at_most_for_a_process_that_closed_its_connection(supervisor):
    """It may hang in exit handlers, as CUDA's do."""
    supervisor, waits = supervisor(), []
    supervisor.connect(0)
    job = supervisor.run(0)
    job.pid, job.join = 7, lambda timeout=None: waits.append(timeout)
    supervisor.granted(0)
    supervisor.ends[0].close()
    ((_, error),) = supervisor.poll()
    assert "is still running but closed its connection" in str(error)
    assert waits[0] <= 1.0


@pytest.mark.parametrize(
    ("handle", "has_joined", "error", "text"),
    [
        ({"pid": None, "ended_by": "SLURM"}, True, None, "JobEnded: w is gone, because SLURM ended its job."),
        ({"pid": None}, False, None, "WorkerDied: w ended before it joined the trainer."),
        (None, False, None, "WorkerDied: w ended before it joined the trainer."),
        (None, True, EOFError("x"), "WorkerDied: w is gone: its connection"),
        ({"pid": None}, True, OSError("reset"), "WorkerDied: w is gone (reset): its connection"),
        (
            {"pid": 7, "exitcode": None},
            True,
            None,
            "WorkerDied: w (pid 7) is still running but closed its connection without",
        ),
        ({"pid": 7, "exitcode": 0}, True, None, "w (pid 7) ended with exit code 0 without"),
        ({"pid": 7, "exitcode": 1}, True, None, "causes: a call of os._exit, or an exit in native code of the env."),
        ({"pid": 7, "exitcode": 2}, True, None, "a call of os._exit, or an exit in native code of the env."),
        ({"pid": 7, "exitcode": -9}, True, None, "w (pid 7) was killed by signal 9 (SIGKILL) without reporting"),
        ({"pid": 7, "exitcode": -9}, True, None, "causes: memory ran out, or another process sent the signal."),
        (
            {"pid": 7, "exitcode": -11},
            True,
            None,
            "11 (SIGSEGV) without reporting an error. Possible causes: native code",
        ),
        ({"pid": 7, "exitcode": -15}, True, None, "Possible causes: another process sent the signal."),
        ({"pid": 7, "exitcode": -999}, True, None, "was killed by signal 999 without"),
    ],
)
def test_how_a_worker_ended(handle, has_joined, error, text):
    joined = []
    handle = handle and SimpleNamespace(**handle, join=joined.append)
    found = death_error("w", has_joined, handle, 5.0, error)
    assert text in f"{type(found).__name__}: {found}"
    assert joined == ([5.0] if handle and handle.pid else [])


def test_a_script_may_have_ended_a_worker_only_in_python():
    handle = SimpleNamespace(pid=7, exitcode=1, join=lambda timeout_s: None)
    with naming(Names({})):
        error = death_error("w", True, handle, 5.0, None)
    assert 'causes: a script that makes a collector outside of its `if __name__ == "__' in str(error)
