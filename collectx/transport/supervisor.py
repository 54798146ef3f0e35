"""Watches the workers' processes. One loop, whose selector waits for all their connections and sentinels, reads
messages and detects deaths and timeouts. An idle worker costs nothing.

Workers that owe a batch or a reply have timers.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from collectx import progress
from collectx.progress import STEPS, Counts
from collectx.transport.connections import LONGEST_WAIT_S, MessageReader, MessageWriter, shut_down
from collectx.transport.peer import Handle, JoinState, Limit, Peer, death_error, end_processes, timeout_error
from collectx.transport.tracebacks import request_stacks


class PeerTimers:
    """A timer for each worker that owes a batch or a reply. `now_s` follows `clock` in `advance`, by at most
    `longest_gap_s` seconds each time, so that a run that was suspended does not time out."""

    def __init__(self, longest_gap_s: float, clock: Callable[[], float]):
        self.now_s = 0.0
        self._longest_gap_s = longest_gap_s
        self._clock = clock
        self._advanced_s = clock()
        # For each limit, the workers and their start times, the oldest first. Separate, so that a worker with a long
        # limit does not hide one with a short limit.
        self._started: dict[Limit, OrderedDict[Peer, float]] = {}

    def advance(self) -> None:
        before_s, self._advanced_s = self._advanced_s, self._clock()
        self.now_s += min(self._advanced_s - before_s, self._longest_gap_s)

    def start(self, peer: Peer, limit: Limit) -> None:
        """Starts the timer of a worker, and sets its `limit`."""
        self.advance()
        peer.limit = limit
        self._started.setdefault(limit, OrderedDict())[peer] = self.now_s

    def stop(self, peer: Peer) -> None:
        """Stops a worker's timer, if it is running, and clears its `limit`."""
        if peer.limit is not None:
            del self._started[peer.limit][peer]
            peer.limit = None

    @property
    def are_running(self) -> bool:
        """Whether any timer is running."""
        return any(self._started.values())

    def next(self) -> tuple[float, Any] | None:
        """Returns the time at which the next timer expires, and its worker; None if no timer is running."""
        oldest = [(*next(iter(started.items())), limit_s) for (_, limit_s), started in self._started.items() if started]
        if not oldest:
            return None
        return min(((start_s + limit_s, peer) for peer, start_s, limit_s in oldest), key=lambda entry: entry[0])


# Seconds that a failed worker may take to end by itself.
_GRACE_S = 0.2
# Seconds that a process without a connection may take to end, so that its error contains the exit code. The other
# workers wait meanwhile.
_EXIT_S = 1.0
# If `events` is not called for longer than this share of the shorter timeout, the rest of the time does not count
# towards timeouts, because the run may have been stopped (Ctrl-Z).
_MAX_GAP = 0.25
# After how long an event says that a worker waits to be started, in seconds.
_WAIT_S = 10.0
# Seconds between two reads of the workers' counters.
_LOOK_S = 1.0

AnyPeer = TypeVar("AnyPeer", bound=Peer)


class Supervisor(Generic[AnyPeer]):
    """Watches the workers' connections and processes. Use it from one thread. `workers` is the record of each worker's
    newest process, by index.

    Args:
        start_timeout_s, worker_timeout_s, close_timeout_s: the options of `collector`.
        num_steps: number of steps in a worker's part of a batch, for messages.
        describe: `describe(index, handle)` returns the name of a worker and its log, for error messages.
        log_size: `log_size(index)` returns the bytes in a worker's log. While the log grows, a worker that has not
            connected is not late.
        join_timeout: `join_timeout(index, handle)` returns the option that limits the time until a worker connects, and
            its value in seconds; `start_timeout_s` then begins at the connection. None: `start_timeout_s` covers both.
        waiting: `waiting(index, handle)` returns what a worker waits for that has not been started; "" for nothing.
        events: called as `events("worker_waits", worker=index, message=...)`, once for each process.
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
        log_size: Callable[[int], int] = lambda index: 0,
        waiting: Callable[[int, Handle | None], str] = lambda index, handle: "",
        events: Callable[..., None] = lambda name, **fields: None,
    ):
        self.workers: dict[int, AnyPeer] = {}
        self._num_steps = num_steps
        self._start_timeout_s = start_timeout_s
        self._worker_timeout_s = worker_timeout_s
        self._close_timeout_s = close_timeout_s
        self._describe = describe
        self._join_timeout, self._log_size = join_timeout, log_size
        self._waiting, self._events = waiting, events
        self._longest_gap_s = _MAX_GAP * min(start_timeout_s, worker_timeout_s)
        self._look_every_s, self._looked_s = min(_LOOK_S, self._longest_gap_s), 0.0
        self._timers = PeerTimers(self._longest_gap_s, clock)
        self._selector = selectors.DefaultSelector()

    def describe(self, peer: Peer) -> str:
        """Returns the name of a worker for error messages, with its host if it is not this one."""
        text = self._describe(peer.index, peer.handle)
        return text if peer.host is None or f"on {peer.host}" in text else f"{text} on {peer.host}"

    def add(self, peer: AnyPeer) -> AnyPeer:
        """Adds the record of an expected worker, in place of the record of its earlier process."""
        self.workers[peer.index] = peer
        return peer

    def connect(self, peer: Peer, connection: Connection) -> None:
        """Takes over the connection of a worker that has joined, and closes it later."""
        peer.connection, peer.reader, peer.writer = connection, MessageReader(connection), MessageWriter(connection)
        peer.state = JoinState.JOINED
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def attach(self, peer: Peer, handle: Handle) -> None:
        """Watches the process of a worker."""
        peer.handle = handle
        if handle.sentinel >= 0:
            self._selector.register(handle.sentinel, selectors.EVENT_READ, peer)

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Makes `events` call `callback` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        """Ends `watch`; call before the descriptor is closed."""
        self._selector.unregister(descriptor)

    @property
    def num_stepping(self) -> int:
        """Number of workers that have stepped their envs. Any thread may read it."""
        return sum(peer.has_stepped for peer in list(self.workers.values()))

    @property
    def has_outstanding(self) -> bool:
        """Whether any worker owes a batch or a reply."""
        return self._timers.are_running

    def has_message(self, peer: Peer) -> bool:
        """Whether a message or the end of the connection is pending. Waits up to 0.2 s for it, because the pair may
        break before the connection does."""
        assert peer.connection is not None
        return peer.connection.poll(min(_GRACE_S, self._close_timeout_s))

    def send(self, peer: Peer, message: bytes) -> None:
        """Sends a message to a worker that has joined. Neither raises nor blocks: if the worker is dead, `events`
        yields its error; if it reads nothing, `events` sends the rest, or yields that the worker is late."""
        assert peer.writer is not None
        assert peer.connection is not None
        with contextlib.suppress(OSError):
            if peer.writer.write(message):
                self._selector.modify(peer.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)

    def _send_rest(self, peer: Peer) -> None:
        """Sends what `send` left, as far as there is room."""
        assert peer.writer is not None
        assert peer.connection is not None
        is_left = False
        with contextlib.suppress(OSError):
            is_left = peer.writer.flush()
        if not is_left:
            self._selector.modify(peer.connection, selectors.EVENT_READ, peer)

    def granted(self, peer: Peer) -> None:
        """Notes that a worker was granted a slot or sent a request; starts its timer if it was idle."""
        peer.num_outstanding += 1
        if peer.limit is None:
            self._begin(peer)

    def delivered(self, peer: Peer) -> None:
        """Notes that a worker delivered one of its outstanding batches."""
        peer.has_delivered = True
        self.replied(peer)

    def replied(self, peer: Peer) -> None:
        """Notes that a worker answered one of its requests."""
        peer.num_outstanding -= 1
        progress.one_more()
        self._timers.stop(peer)
        if peer.num_outstanding:
            self._begin(peer)

    def _begin(self, peer: Peer) -> None:
        self._timers.start(peer, self._limit(peer))
        peer.progress, peer.began_s, peer.progressed_s = peer.read_counts(), self._timers.now_s, None

    def progressed(self, peer: Peer, counts: Counts | None) -> bool:
        """Takes the counts of a worker; if they have changed, restarts its timer and returns True."""
        if counts is None or counts == peer.progress or peer.limit is None:
            return False
        peer.progress, peer.progressed_s = counts, self._timers.now_s
        if counts[STEPS] == 0:  # it has made or reset envs
            peer.began_s = self._timers.now_s
        self.renew_timer(peer)
        progress.one_more()
        return True

    def _look(self) -> None:
        """Reads the counters of all workers, and looks at those in a queue, at most every `_look_every_s`."""
        if self._timers.now_s - self._looked_s >= self._look_every_s:
            self._looked_s = self._timers.now_s
            for peer in self.workers.values():
                self.progressed(peer, peer.read_counts())
                if peer.limit is not None and not peer.has_joined:
                    self._look_at_queued(peer)

    def _look_at_queued(self, peer: Peer) -> None:
        if peer.limit != self._limit(peer):
            self.renew_timer(peer)
        elif not peer.is_reported and self._timers.now_s - peer.began_s >= _WAIT_S:
            peer.is_reported = True
            if message := self._waiting(peer.index, peer.handle):
                self._events("worker_waits", worker=peer.index, message=message)

    def renew_timer(self, peer: Peer) -> None:
        """Restarts the timer of a worker that owes something."""
        if peer.limit is not None:
            self._timers.stop(peer)
            self._timers.start(peer, self._limit(peer))

    def events(self, timeout_s: float | None = None) -> Iterator[tuple[AnyPeer, bytes | Exception]]:
        """Yields `(worker, message)`, or `(worker, error)` for a worker that is gone or late. Blocks until there is
        one, a watched descriptor is readable, `timeout_s` seconds have passed, or a timeout must be looked at. So it
        may yield nothing."""
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
        for key, possible in ready:
            if not isinstance(key.data, Peer):
                key.data()
                was_called = True
                continue
            peer: Any = key.data
            if possible & selectors.EVENT_WRITE and peer.state is not JoinState.GONE:
                self._send_rest(peer)
            if not possible & selectors.EVENT_READ:
                continue
            for message in self._messages(peer, key.fileobj):
                if peer in gone:
                    break
                active.add(peer)
                if isinstance(message, Exception):
                    gone.add(peer)
                yield peer, message
        if expiring is not None and self._timers.now_s >= expiring[0]:
            late = expiring[1]
            # A readable descriptor may come from the late worker; messages of other workers do not.
            if late not in active and not was_called and (error := self._check_late(late)) is not None:
                yield late, error

    def _check_late(self, late: Peer) -> Exception | None:
        """Returns the error of a worker whose timer has expired; None if it has made progress, is starting, or another
        limit applies now."""
        if self.progressed(late, late.read_counts()):
            return None
        is_starting = late.is_starting() or self._is_writing(late)
        if late.limit is not None and late.limit == self._limit(late) and not is_starting:
            return self.timeout_error(late, late.limit)
        self.renew_timer(late)  # it is starting, or has joined or delivered meanwhile and has another limit
        return None

    def _is_writing(self, peer: Peer) -> bool:
        """Whether a worker that has not connected has written to its log since the last call."""
        before, peer.log_size = peer.log_size, 0 if peer.has_joined else self._log_size(peer.index)
        return peer.log_size > before

    def _messages(self, peer: Peer, source: Any) -> Iterator[bytes | Exception]:
        """Yields the messages of a descriptor, and a worker's error; nothing for a removed worker."""
        if peer.state is JoinState.GONE:
            return
        if source is peer.connection:
            yield from self._read(peer)
            return
        # The process ended; its last messages may still be in the socket.
        while peer.connection is not None and peer.connection.poll():
            for message in self._read(peer):
                yield message
                if isinstance(message, Exception):
                    return
        if peer.state is not JoinState.GONE:
            yield self._death_error(peer)

    def _read(self, peer: Peer) -> Iterator[bytes | Exception]:
        assert peer.reader is not None
        try:
            messages: Sequence[bytes | Exception] = peer.reader.read()
        except (EOFError, OSError) as error:
            messages = [self._death_error(peer, error)]
        for message in messages:
            if peer.state is not JoinState.GONE:
                yield message

    def _death_error(self, peer: Peer, error: Exception | None = None) -> Exception:
        wait_s = min(self._close_timeout_s, _EXIT_S)
        return death_error(self.describe(peer), peer.has_joined, peer.handle, wait_s, error)

    def timeout_error(self, peer: Peer, limit: Limit) -> Exception:
        """Returns the error of a worker that exceeded a timeout, with the stacks of its threads."""
        stacks = request_stacks(peer.handle.pid if peer.handle is not None else None, peer.connection)
        is_heard = peer.has_joined or peer.progress is not None
        return timeout_error(self.describe(peer), is_heard, limit, peer.describe_progress(self._num_steps), stacks)

    def _limit(self, peer: Peer) -> Limit:
        if peer.has_stepped:
            return "collector.worker_timeout_s", self._worker_timeout_s
        limit = None
        if self._join_timeout is not None and not peer.has_joined:
            limit = self._join_timeout(peer.index, peer.handle)
        return limit or ("collector.start_timeout_s", self._start_timeout_s)

    def remove(self, peer: Peer, hangs: bool = False) -> None:
        """Closes the connection of a worker and ends its process, at once if it `hangs`. Its record stays until `add`
        replaces it."""
        peer.state = JoinState.GONE
        self._timers.stop(peer)
        connection, peer.connection, peer.reader, peer.writer = peer.connection, None, None, None
        if connection is not None:
            self._selector.unregister(connection)
            shut_down(connection)
        if (handle := peer.handle) is not None:
            if handle.sentinel >= 0:
                self._selector.unregister(handle.sentinel)
            # Waits briefly only, so that the other workers do not run out of slots. If another thread kills the
            # process, this wait ends.
            end_processes([handle], 0.0 if hangs else min(_GRACE_S, self._close_timeout_s))
            peer.handle = None

    def kill_workers(self, *states: JoinState) -> None:
        """Kills the processes of the workers in these states."""
        for peer in self.workers.values():
            if peer.state in states and peer.handle is not None and peer.handle.exitcode is None:
                peer.handle.kill()

    def close(self) -> None:
        """Closes all connections, which tells the workers to stop, and ends their processes. Blocks for about
        `close_timeout_s`."""
        for peer in self.workers.values():
            if peer.connection is not None:
                shut_down(peer.connection)
        handles = [peer.handle for peer in self.workers.values() if peer.handle is not None]
        try:
            end_processes(handles, self._close_timeout_s)
        except BaseException:
            # `close` is not called again, and a process that hangs would keep this one from ending.
            for handle in handles:
                handle.kill()
            raise
        finally:
            self._selector.close()
