"""Watches the workers' processes: one epoll loop over their connections and sentinels reads messages and detects deaths
and timeouts. An idle worker costs nothing.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from collectx import progress
from collectx.progress import OTHERS, STEPS, Counts
from collectx.transport.connections import LONGEST_WAIT_S, MessageReader, set_send_timeout, shut_down
from collectx.transport.processes import Handle, Limit, death_error, end_processes, timeout_error
from collectx.transport.tracebacks import request_stacks

# How long a failed worker may take to end by itself.
_GRACE_S = 0.2
# If `events` is not called for longer than this share of the shorter timeout, the excess does not count towards
# timeouts: the run may have been stopped (Ctrl-Z).
_MAX_GAP = 0.25
# Seconds between two looks at the workers' counters.
_LOOK_S = 1.0


class JoinState(Enum):
    """The state of one process of a worker. Any state may change to GONE. In shared memory there is no PAIRING.

    EXPECTED --knows the secret--> PAIRING --both connections are made--> JOINED ----> GONE
             <------it failed-----
    """

    EXPECTED = "expected"
    PAIRING = "pairing"
    JOINED = "joined"
    GONE = "gone"


@dataclass(eq=False)
class Peer:
    """One process of a worker, as the transport sees it. Its replacement gets another object.

    Attributes:
        index: the worker's.
        connection, reader: carry control messages; None until it has joined.
        handle: its process, if the trainer started it.
        host: where it runs, unless on the trainer's host.
        num_outstanding: grants not yet delivered, and requests not yet answered.
        has_delivered: whether it has ever delivered a batch.
        limit: the timeout that applies while `num_outstanding` is above 0.
        counts: its counters in shared memory (`collectx.progress`); None if it reports them in messages.
        progress: the counts at the last look.
        began_s, progressed_s: when its current task began, and when its counts last changed; both in timer time.
    """

    index: int
    state: JoinState = JoinState.EXPECTED
    connection: Connection | None = None
    reader: MessageReader | None = None
    handle: Handle | None = None
    host: str | None = None
    num_outstanding: int = 0
    has_delivered: bool = False
    limit: Limit | None = None
    counts: memoryview | None = None
    progress: Counts | None = None
    began_s: float = 0.0
    progressed_s: float | None = None


class PeerTimers:
    """One timer for each worker that owes a batch or a reply. They expire by `now_s`, which follows `clock` only with
    `advance`, and by `longest_gap_s` seconds at most.
    """

    def __init__(self, longest_gap_s: float, clock: Callable[[], float]):
        self.now_s = 0.0
        self._longest_gap_s = longest_gap_s
        self._clock = clock
        self._advanced_s = clock()
        # For each limit, the workers with their start times, the oldest first: a worker with a long limit must not
        # hide one with a short limit.
        self._started: dict[Limit, OrderedDict[Any, float]] = {}

    def advance(self) -> None:
        before_s, self._advanced_s = self._advanced_s, self._clock()
        self.now_s += min(self._advanced_s - before_s, self._longest_gap_s)

    def start(self, process: Any, limit: Limit) -> None:
        """Starts the timer of a `collectx.transport.supervisor.Peer`, and sets its `limit`."""
        self.advance()
        process.limit = limit
        self._started.setdefault(limit, OrderedDict())[process] = self.now_s

    def stop(self, process: Any) -> None:
        """Stops a worker's timer, if it is running, and clears its `limit`."""
        if process.limit is not None:
            del self._started[process.limit][process]
            process.limit = None

    @property
    def are_running(self) -> bool:
        """Whether any timer is running."""
        return any(self._started.values())

    def next(self) -> tuple[float, Any] | None:
        """Returns when the next timer expires, and whose it is; None if none is running."""
        oldest = [(*next(iter(started.items())), limit_s) for (_, limit_s), started in self._started.items() if started]
        if not oldest:
            return None
        return min(((start_s + limit_s, process) for process, start_s, limit_s in oldest), key=lambda entry: entry[0])


AnyPeer = TypeVar("AnyPeer", bound=Peer)


class Supervisor(Generic[AnyPeer]):
    """Watches the workers' connections and processes. Used from one thread.

    Args:
        start_timeout_s, worker_timeout_s, close_timeout_s: the options of `collector`.
        num_steps: of a worker's batch, for messages.
        describe: `describe(index, handle)` names a worker and its log in error messages.
        join_timeout: `join_timeout(index, handle)` is the option, and its value in seconds, that limits how long a
            worker may take to connect; `start_timeout_s` then counts from its connection. `None` if
            `start_timeout_s` covers both.
        clock: returns the time in seconds.

    Attributes:
        workers: the newest process of each worker, by index.
    """

    def __init__(
        self,
        start_timeout_s: float,
        worker_timeout_s: float,
        close_timeout_s: float,
        describe: Callable[[int, Handle | None], str],
        join_timeout: Callable[[int, Handle | None], Limit | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        num_steps: int = 0,
    ):
        self.workers: dict[int, AnyPeer] = {}
        self._num_steps = num_steps
        self._start_timeout_s = start_timeout_s
        self._worker_timeout_s = worker_timeout_s
        self._close_timeout_s = close_timeout_s
        self._describe = describe
        self._join_timeout = join_timeout
        self._longest_gap_s = _MAX_GAP * min(start_timeout_s, worker_timeout_s)
        self._look_every_s, self._looked_s = min(_LOOK_S, self._longest_gap_s), 0.0
        self._timers = PeerTimers(self._longest_gap_s, clock)
        self._selector = selectors.DefaultSelector()

    def describe(self, process: Peer) -> str:
        """Names a worker in error messages, with its host if that is another one."""
        text = self._describe(process.index, process.handle)
        return text if process.host is None or f"on {process.host}" in text else f"{text} on {process.host}"

    def add(self, process: AnyPeer) -> AnyPeer:
        """Adds the record of a worker that is expected, in place of the one that is gone."""
        self.workers[process.index] = process
        return process

    def connect(self, process: Peer, connection: Connection) -> None:
        """Takes the connection of a worker, which has joined; the supervisor closes it."""
        set_send_timeout(connection, self._start_timeout_s)
        process.connection, process.reader = connection, MessageReader(connection)
        process.state = JoinState.JOINED
        self._selector.register(connection, selectors.EVENT_READ, process)

    def attach(self, process: Peer, handle: Handle) -> None:
        """Watches a worker's process."""
        process.handle = handle
        if handle.sentinel >= 0:
            self._selector.register(handle.sentinel, selectors.EVENT_READ, process)

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Lets `events` call `callback` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    @property
    def has_outstanding(self) -> bool:
        """Whether any worker owes a batch or a reply."""
        return self._timers.are_running

    def has_message(self, process: Peer) -> bool:
        """Whether a message or a closed connection is pending. Waits briefly: the data connection may break first."""
        assert process.connection is not None
        return process.connection.poll(min(_GRACE_S, self._close_timeout_s))

    def send(self, process: Peer, message: bytes) -> None:
        """Sends to a worker that has joined. Never fails: if the worker is dead, `events` yields its error; if it reads
        nothing for its whole timeout, `events` reports that it is late."""
        assert process.connection is not None
        with contextlib.suppress(OSError):
            process.connection.send_bytes(message)

    def granted(self, process: Peer) -> None:
        """Notes that a worker was granted a slot, and starts its timer."""
        process.num_outstanding += 1
        if process.limit is None:
            self._begin(process)

    def delivered(self, process: Peer) -> None:
        """Notes that a worker delivered one of its outstanding batches."""
        if not process.has_delivered:
            process.has_delivered = True
            assert process.connection is not None
            set_send_timeout(process.connection, self._worker_timeout_s)
        self.replied(process)

    def replied(self, process: Peer) -> None:
        """Notes that a worker answered one of its requests."""
        process.num_outstanding -= 1
        progress.one_more()
        self._timers.stop(process)
        if process.num_outstanding:
            self._begin(process)

    def _begin(self, process: Peer) -> None:
        """Starts the timer of a worker's next task."""
        self._timers.start(process, self._limit(process))
        process.progress, process.began_s, process.progressed_s = self._counted(process), self._timers.now_s, None

    @staticmethod
    def _counted(process: Peer) -> Counts | None:
        """Reads a worker's counters."""
        return None if process.counts is None else (process.counts[STEPS], process.counts[OTHERS])

    def progressed(self, process: Peer, counts: Counts | None) -> bool:
        """Takes a worker's counts; if they changed, restarts the worker's timeout and returns True."""
        if counts is None or counts == process.progress or process.limit is None:
            return False
        process.progress, process.progressed_s = counts, self._timers.now_s
        if counts[STEPS] == 0:  # it has made or reset envs
            process.began_s = self._timers.now_s
        self.restart_timer(process)
        progress.one_more()
        return True

    def _look(self) -> None:
        """Reads the counters of all workers, at most every `_look_every_s`."""
        if self._timers.now_s - self._looked_s >= self._look_every_s:
            self._looked_s = self._timers.now_s
            for process in self.workers.values():
                self.progressed(process, self._counted(process))

    def restart_timer(self, process: Peer) -> None:
        """Lets a worker's full timeout begin at this moment."""
        if process.limit is not None:
            self._timers.stop(process)
            self._timers.start(process, self._limit(process))

    def events(self, timeout_s: float | None = None) -> Iterator[tuple[AnyPeer, bytes | Exception]]:
        """Blocks until a worker has sent a message, is gone or is late, or a share of the timeouts has passed, for
        `timeout_s` at most; yields `(worker, message)`, or `(worker, error)` for a worker that is gone or late."""
        self._timers.advance()
        self._look()
        expiring = self._timers.next()
        limits = [LONGEST_WAIT_S] if timeout_s is None else [LONGEST_WAIT_S, timeout_s]
        if expiring is not None:
            limits += [max(0.0, expiring[0] - self._timers.now_s), self._look_every_s]
        ready = self._selector.select(min(limits))
        self._timers.advance()
        active: set[Any] = set()
        gone: set[Any] = set()
        was_called = False
        for key, _ in ready:
            if not isinstance(key.data, Peer):
                key.data()
                was_called = True
                continue
            process: Any = key.data
            for message in self._messages(process, key.fileobj):
                if process in gone:
                    break
                active.add(process)
                if isinstance(message, Exception):
                    gone.add(process)
                yield process, message
        if expiring is not None:
            deadline_s, late = expiring
            # A watched descriptor may be a sign of the late worker. Messages of other workers are not.
            if self._timers.now_s >= deadline_s and late not in active and not was_called:
                if self.progressed(late, self._counted(late)):
                    return
                if late.limit is not None and late.limit == self._limit(late):
                    yield late, self.timeout_error(late, late.limit)
                else:
                    self.restart_timer(late)  # it has joined or delivered meanwhile, and has another limit

    def _messages(self, process: Peer, source: Any) -> Iterator[bytes | Exception]:
        """The messages that a ready descriptor brings, or the error of a worker that is gone; nothing of a worker that
        was removed meanwhile."""
        if process.state is JoinState.GONE:
            return
        if source is process.connection:
            yield from self._read(process)
            return
        # The process ended; its last messages may still be in the socket.
        while process.connection is not None and process.connection.poll():
            for message in self._read(process):
                yield message
                if isinstance(message, Exception):
                    return
        if process.state is not JoinState.GONE:
            yield self._death_error(process)

    def _read(self, process: Peer) -> Iterator[bytes | Exception]:
        assert process.reader is not None
        try:
            messages: Sequence[bytes | Exception] = process.reader.read()
        except (EOFError, OSError) as error:
            messages = [self._death_error(process, error)]
        for message in messages:
            if process.state is not JoinState.GONE:
                yield message

    def _death_error(self, process: Peer, error: Exception | None = None) -> Exception:
        has_joined = process.state is JoinState.JOINED
        return death_error(self.describe(process), has_joined, process.handle, self._close_timeout_s, error)

    def timeout_error(self, process: Peer, limit: Limit) -> Exception:
        """The error of a worker that exceeded a timeout."""
        stacks = request_stacks(process.handle.pid if process.handle is not None else None, process.connection)
        return timeout_error(
            self.describe(process), process.state is JoinState.JOINED, limit, self._progress_of(process), stacks
        )

    def _progress_of(self, process: Peer) -> str:
        """Describes a worker's progress with its current task, for messages."""
        if process.progress is None or process.progressed_s is None:
            return ""
        steps, others = process.progress
        if steps:
            step_s = (process.progressed_s - process.began_s) / steps
            return f"It stepped {steps} of {self._num_steps} times, {step_s:.2g} s a step"
        return "" if process.has_delivered else f"It has made or reset envs {others} times, and not stepped them yet"

    def _limit(self, process: Peer) -> Limit:
        if process.has_delivered:
            return "collector.worker_timeout_s", self._worker_timeout_s
        has_joined = process.state is JoinState.JOINED
        limit = None
        if self._join_timeout is not None and not has_joined:
            limit = self._join_timeout(process.index, process.handle)
        return limit or ("collector.start_timeout_s", self._start_timeout_s)

    def remove(self, process: Peer) -> None:
        """Closes a worker's connection and ends its process; its record stays until another is added for its index."""
        process.state = JoinState.GONE
        self._timers.stop(process)
        connection, process.connection, process.reader = process.connection, None, None
        if connection is not None:
            self._selector.unregister(connection)
            shut_down(connection)
        if (handle := process.handle) is not None:
            if handle.sentinel >= 0:
                self._selector.unregister(handle.sentinel)
            # Briefly, as the other workers must not run out of slots meanwhile. Another thread that kills the process
            # ends this wait.
            end_processes([handle], min(_GRACE_S, self._close_timeout_s))
            process.handle = None

    def kill_workers(self, *states: JoinState) -> None:
        """Kills the processes of the workers in these states."""
        for process in self.workers.values():
            if process.state in states and process.handle is not None and process.handle.exitcode is None:
                process.handle.kill()

    def close(self) -> None:
        """Closes all connections, which tells the workers to stop, and ends their processes."""
        for process in self.workers.values():
            if process.connection is not None:
                shut_down(process.connection)
        handles = [process.handle for process in self.workers.values() if process.handle is not None]
        try:
            end_processes(handles, self._close_timeout_s)
        except BaseException:
            # `close` is not called again: a process that hangs would keep this one from ending.
            for handle in handles:
                handle.kill()
            raise
        finally:
            self._selector.close()
