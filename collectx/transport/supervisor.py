"""The trainer's connections to its workers: one socket each for control messages, one epoll over all of them, so that
an idle worker costs nothing. Knows who owes a batch since when, and who is gone.

Used by the transports between processes. Must not know what the messages mean.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.transport.connections import MessageReader, set_send_timeout

# epoll takes milliseconds in 32 bits; a longer wait is several.
_LONGEST_SELECT_S = 86400.0
# How long a worker that has failed may take to end by itself.
_GRACE_S = 0.2
# The part of the shorter timeout that the time between two looks counts for at most.
_LONGEST_GAP = 0.25
# A knob and its value in seconds.
_Limit = tuple[str, float]


class Handle(Protocol):
    """What is needed of a started worker process: `multiprocessing.Process` has it. `sentinel` is a descriptor that
    becomes readable when the process ends, or -1 where there is none. `pid` is None where it is no process of this
    machine; its end is then known late, and waiting for it is not worth while."""

    @property
    def sentinel(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Supervisor:
    """Used from one thread.

    Args:
        start_timeout_s: how long a worker may take from its start to its first batch.
        worker_timeout_s: how long a worker may take for any later batch.
        close_timeout_s: how long workers may take to stop before they are killed.
        describe: names a worker's log in error messages.
        join_timeout: `join_timeout(worker)` is the knob and the seconds that limit how long a worker may take to come;
            its start then begins when it has. None: `start_timeout_s` covers both.
        clock: the time in seconds. What passes between two looks of the trainer counts for a quarter of the shorter
            timeout at most: it may have been stopped meanwhile (Ctrl-Z, a suspended machine), and its workers with it.
    """

    def __init__(
        self,
        start_timeout_s: float,
        worker_timeout_s: float,
        close_timeout_s: float,
        describe: Callable[[int], str],
        join_timeout: Callable[[int], _Limit] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._start_timeout_s = start_timeout_s
        self._worker_timeout_s = worker_timeout_s
        self._close_timeout_s = close_timeout_s
        self._describe = describe
        self._hosts: dict[int, str] = {}
        self._join_timeout = join_timeout
        self._clock = clock
        self._longest_gap_s = _LONGEST_GAP * min(start_timeout_s, worker_timeout_s)
        # When the trainer looked last, and the seconds of looking by which batches are late.
        self._checked_s, self._now_s = clock(), 0.0
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        self._readers: dict[int, MessageReader] = {}
        self._handles: dict[int, Handle] = {}
        self._watched: set[Any] = set()
        self._num_outstanding: dict[int, int] = {}
        self._has_delivered: set[int] = set()
        # Workers that owe a batch, with what limits their time; for each such limit, since when they do, the oldest
        # first: who may take long must not hide who may not.
        self._waiting: dict[int, _Limit] = {}
        self._since: dict[_Limit, OrderedDict[int, float]] = {}

    def describe(self, worker: int) -> str:
        """Names a worker in error messages, with its host where it is known to be on another."""
        text, host = self._describe(worker), self._hosts.get(worker)
        return text if host is None or f"on {host}" in text else f"{text} on {host}"

    @property
    def handles(self) -> dict[int, Any]:
        """The processes that are watched, by worker."""
        return dict(self._handles)

    def add_connection(self, worker: int, connection: Connection, host: str | None = None) -> None:
        """Listens to a worker's connection, which becomes the supervisor's. `host` is where it is, if not here."""
        set_send_timeout(connection, self._start_timeout_s)
        self._connections[worker] = connection
        self._readers[worker] = MessageReader(connection)
        if host is not None:
            self._hosts[worker] = host
        self._selector.register(connection, selectors.EVENT_READ, worker)

    def attach(self, worker: int, handle: Handle) -> None:
        """Watches a worker's process."""
        self._handles[worker] = handle
        if handle.sentinel >= 0:
            self._selector.register(handle.sentinel, selectors.EVENT_READ, worker)

    def watch(self, descriptor: Any, key: object) -> None:
        """Lets `events` yield `(key, None)` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, key)
        self._watched.add(key)

    @property
    def has_outstanding(self) -> bool:
        """Whether any worker owes a batch."""
        return bool(self._waiting)

    def is_connected(self, worker: int) -> bool:
        """Whether a worker's connection is there."""
        return worker in self._connections

    def has_message(self, worker: int) -> bool:
        """Whether `events` has something to say of a worker whose bytes have stopped: mostly why. Blocks for a moment,
        as the bytes may stop before its connection does."""
        return self._connections[worker].poll(min(_GRACE_S, self._close_timeout_s))

    def send(self, worker: int, message: bytes) -> None:
        """Sends to a worker. Where it is dead or dying, `events` will find its last words, if there are any; where it
        reads nothing for as long as it has for a batch, `events` will tell that it is late."""
        with contextlib.suppress(OSError):
            self._connections[worker].send_bytes(message)

    def granted(self, worker: int) -> None:
        """Notes that a worker was granted a slot: its time runs."""
        self._num_outstanding[worker] = self._num_outstanding.get(worker, 0) + 1
        if worker not in self._waiting:
            self._start_clock(worker)

    def delivered(self, worker: int) -> None:
        """Notes that a worker has delivered one of the batches that it owes."""
        if worker not in self._has_delivered:
            self._has_delivered.add(worker)
            set_send_timeout(self._connections[worker], self._worker_timeout_s)
        self._num_outstanding[worker] -= 1
        self._stop_clock(worker)
        if self._num_outstanding[worker]:
            self._start_clock(worker)

    def restart_clock(self, worker: int) -> None:
        """Gives a worker the whole of its time again, from now."""
        if worker in self._waiting:
            self._stop_clock(worker)
            self._start_clock(worker)

    def _start_clock(self, worker: int) -> None:
        self._advance_clock()
        limit = self._waiting[worker] = self._limit(worker)
        self._since.setdefault(limit, OrderedDict())[worker] = self._now_s

    def _stop_clock(self, worker: int) -> None:
        limit = self._waiting.pop(worker, None)
        if limit is not None:
            del self._since[limit][worker]

    def _advance_clock(self) -> None:
        """Lets the time go on by which batches are late."""
        before_s, self._checked_s = self._checked_s, self._clock()
        self._now_s += min(self._checked_s - before_s, self._longest_gap_s)

    def events(self, timeout_s: float | None = None) -> Iterator[tuple[Any, bytes | Exception | None]]:
        """Blocks until a worker says something, is gone, or is too late, or a part of the timeouts has passed; then
        yields `(worker, message)`, or `(worker, error)` for one that is gone, or `(key, None)` for what is watched.

        Args:
            timeout_s: how long to block.
        """
        self._advance_clock()
        limit_s, late = self._next_timeout()
        if timeout_s is not None:
            limit_s = min(limit_s, timeout_s)
        ready = self._selector.select(limit_s)
        self._advance_clock()
        active: set[Any] = set()
        gone: set[Any] = set()
        for key, _ in ready:
            for message in self._messages(key):
                if key.data in gone:
                    break
                active.add(key.data)
                if isinstance(message, Exception):
                    gone.add(key.data)
                yield key.data, message
        # A late worker is late also where others always have something ready; but what is watched may bring it.
        if late is None or self._now_s < late[1] or late[0] in active or not active.isdisjoint(self._watched):
            return
        worker = late[0]
        if worker in self._waiting and self._limit(worker) == self._waiting[worker]:
            yield worker, self._timeout_error(worker)
        else:
            self.restart_clock(worker)  # it has got further since, and has another limit

    def _messages(self, key: selectors.SelectorKey) -> Iterator[bytes | Exception | None]:
        """What a ready descriptor says: whole messages, the error of a worker that is gone, None of what is watched;
        nothing of a worker that was forgotten meanwhile."""
        worker = key.data
        connection = self._connections.get(worker)
        if key.fileobj is connection:
            for message in self._read(worker):
                if self._connections.get(worker) is not connection:
                    return
                yield message
        elif isinstance(key.fileobj, int) and worker in self._handles:
            # The process ended; its last words may still be in the socket.
            while worker in self._connections and self._connections[worker].poll():
                for message in self._read(worker):
                    if worker not in self._connections:
                        return
                    yield message
                    if isinstance(message, Exception):
                        return
            if worker in self._handles:
                yield self._death_error(worker)
        elif worker in self._watched:
            yield None

    def _next_timeout(self) -> tuple[float, tuple[int, float] | None]:
        """How long to sleep at most, and who is late next, with the time when it is."""
        oldest = [(*next(iter(clock.items())), limit_s) for (_, limit_s), clock in self._since.items() if clock]
        if not oldest:
            return _LONGEST_SELECT_S, None
        deadline, worker = min((since + limit_s, worker) for worker, since, limit_s in oldest)
        rest_s = max(0.0, deadline - self._now_s)
        return min(rest_s, self._longest_gap_s, _LONGEST_SELECT_S), (worker, deadline)

    def _limit(self, worker: int) -> _Limit:
        if worker in self._has_delivered:
            return "collector.worker_timeout_s", self._worker_timeout_s
        if worker not in self._connections and self._join_timeout is not None:
            return self._join_timeout(worker)
        return "collector.start_timeout_s", self._start_timeout_s

    def _timeout_error(self, worker: int) -> WorkerTimeout:
        knob, limit_s = self._waiting[worker]
        if worker not in self._connections:
            what = "has not joined"
            why = (
                "it waits in a queue, starts slowly, or cannot reach the trainer, as its log then says (choose another "
                "network with backend.interface; a firewall must let all TCP ports between the hosts through)"
            )
        else:
            what = "delivered nothing"
            why = "its env or policy hangs, its host is out of reach, or a batch takes longer than that"
        return WorkerTimeout(
            f"{self.describe(worker)} {what} for {limit_s:g} s ({knob}={limit_s:g}): {why}; "
            f"to wait longer, raise {knob}."
        )

    def _read(self, worker: int) -> Sequence[bytes | Exception]:
        try:
            return self._readers[worker].read()
        except (EOFError, OSError) as error:
            return [self._death_error(worker, error)]

    def _death_error(self, worker: int, error: Exception | None = None) -> WorkerDied:
        handle = self._handles.get(worker)
        if handle is None or handle.pid is None:
            if worker not in self._connections:
                return WorkerDied(f"{self.describe(worker)} ended before it had joined the trainer.")
            cause = "" if error is None or isinstance(error, EOFError) else f" ({error})"
            return WorkerDied(
                f"{self.describe(worker)} is gone{cause}: its connection broke without an error being reported: killed "
                "from outside, out of memory, a crash in native code of the env, or its host is gone."
            )
        handle.join(self._close_timeout_s)
        code = handle.exitcode
        how = "is still running but closed its connection" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        return WorkerDied(
            f"{self.describe(worker)} (pid {handle.pid}) {how} without reporting an error: killed from outside, "
            "out of memory, or a crash in native code of the env."
        )

    def remove(self, worker: int) -> None:
        """Closes a worker's connection, ends its process, if it has one still, and forgets what it owes, so that
        another can take its index."""
        connection = self._connections.pop(worker, None)
        if connection is not None:
            del self._readers[worker]
            self._selector.unregister(connection)
            connection.close()
        handle = self._handles.pop(worker, None)
        if handle is not None:
            if handle.sentinel >= 0:
                self._selector.unregister(handle.sentinel)
            # Not long: the other workers must not run out of slots meanwhile.
            self._stop_processes([handle], min(_GRACE_S, self._close_timeout_s))
        self._num_outstanding.pop(worker, None)
        self._stop_clock(worker)
        self._has_delivered.discard(worker)
        self._hosts.pop(worker, None)

    def terminate_unconnected(self) -> None:
        """Ends the processes of workers that have no connection yet: nobody will tell them to stop, and they would look
        for a trainer that is gone."""
        for worker, handle in self._handles.items():
            if worker not in self._connections and handle.exitcode is None:
                handle.terminate()

    def close(self) -> None:
        """Closes all connections, by which workers know that they shall stop; ends their processes."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        handles = list(self._handles.values())
        try:
            self._stop_processes(handles, self._close_timeout_s)
        except BaseException:
            # Nobody closes again: who hangs would keep this process from ending.
            for handle in handles:
                handle.kill()
            raise
        finally:
            self._selector.close()

    def _stop_processes(self, handles: Sequence[Handle], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for method in (None, "terminate", "kill"):
            for handle in handles:
                if method is not None and handle.exitcode is None:
                    getattr(handle, method)()
            for handle in handles:
                handle.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + 1.0
