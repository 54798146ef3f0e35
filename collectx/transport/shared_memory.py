"""Transport between processes of one machine: bytes lie in one slab, only slot numbers travel, over one socket pair per
worker. The trainer sleeps in one epoll over all of them, so an idle worker costs nothing.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn, Protocol

import torch

from collectx.errors import RemoteFailure, WorkerDied, WorkerTimeout
from collectx.transport.base import Arrival, SlabSpec, Tally
from collectx.transport.slab import Slab

# epoll takes milliseconds in 32 bits; a longer wait is several.
_LONGEST_SELECT_S = 86400.0


class Handle(Protocol):
    """What the transport needs of a started worker process: `multiprocessing.Process` has it."""

    @property
    def sentinel(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class SharedMemoryTransport:
    """The trainer's end.

    Args:
        spec: the slab.
        start_timeout_s: how long a worker may take from its start to its first batch.
        worker_timeout_s: how long a worker may take for any later batch.
        close_timeout_s: how long workers may take to stop before they are killed.
        describe: names a worker's log in error messages.
    """

    def __init__(
        self,
        spec: SlabSpec,
        start_timeout_s: float,
        worker_timeout_s: float,
        close_timeout_s: float,
        describe: Callable[[int], str] = lambda worker: f"worker {worker}",
    ):
        self.slab = Slab(spec, shared=True)
        self.region_layout = self.slab.region_layout
        self._start_timeout_s = start_timeout_s
        self._worker_timeout_s = worker_timeout_s
        self._close_timeout_s = close_timeout_s
        self._describe = describe
        pairs = [Pipe(duplex=True) for _ in range(spec.num_workers)]
        self._connections: list[Connection] = [ours for ours, _ in pairs]
        self._remote_ends = [theirs for _, theirs in pairs]
        self._selector = selectors.DefaultSelector()
        for worker, connection in enumerate(self._connections):
            self._selector.register(connection, selectors.EVENT_READ, worker)
        self._handles: Sequence[Handle] = []
        self._arrivals: deque[Arrival] = deque()
        self._owed = [0] * spec.num_workers
        self._joined = [False] * spec.num_workers
        # Workers that owe a batch, with the time since when, oldest first.
        self._waiting: OrderedDict[int, float] = OrderedDict()
        self._closed = False

    def link(self, worker: int) -> SharedMemoryLink:
        """The worker's end, to be pickled as an argument of the worker's process."""
        return SharedMemoryLink(self.slab, worker, self._remote_ends[worker])

    def attach(self, handles: Sequence[Handle]) -> None:
        """Takes the started processes, in order of their index, and drops what only they need."""
        self._handles = list(handles)
        for end in self._remote_ends:
            end.close()
        self.slab.close_descriptor()
        for worker, handle in enumerate(handles):
            self._selector.register(handle.sentinel, selectors.EVENT_READ, worker)

    def grant(self, worker: int, slot: int) -> None:
        self._owed[worker] += 1
        self._waiting.setdefault(worker, time.monotonic())
        # Where it is dead or dying, `receive` will find its last words, if there are any.
        with contextlib.suppress(OSError):
            self._connections[worker].send(slot)

    def receive(self) -> Arrival:
        while not self._arrivals:
            self._wait()
        return self._arrivals.popleft()

    def _wait(self) -> None:
        if not self._waiting:
            raise RuntimeError("no worker was granted a slot, so there is nothing to receive")
        worker, since = next(iter(self._waiting.items()))
        knob, limit_s = (
            ("collector.worker_timeout_s", self._worker_timeout_s)
            if self._joined[worker]
            else ("collector.start_timeout_s", self._start_timeout_s)
        )
        left_s = since + limit_s - time.monotonic()
        ready = self._selector.select(min(max(0.0, left_s), _LONGEST_SELECT_S))
        # A late worker is late also where others always have something ready.
        if left_s <= _LONGEST_SELECT_S and (not ready or (left_s <= 0 and all(key.data != worker for key, _ in ready))):
            raise WorkerTimeout(
                f"{self._describe(worker)} delivered nothing for {limit_s:g} s ({knob}={limit_s:g}): its env or policy "
                f"hangs, or a batch takes longer than that; if so, raise {knob}."
            )
        for key, _ in ready:
            if isinstance(key.fileobj, int):
                # The process ended; its last words may still be in the socket.
                while self._connections[key.data].poll():
                    self._read(key.data)
                self._died(key.data)
            else:
                self._read(key.data)

    def _read(self, worker: int) -> None:
        try:
            message = self._connections[worker].recv()
        except (EOFError, OSError):
            self._died(worker)
        if isinstance(message, RemoteFailure):
            raise message.rebuild(self._describe(worker))
        slot, tally = message
        self._joined[worker] = True
        self._owed[worker] -= 1
        del self._waiting[worker]
        if self._owed[worker]:
            self._waiting[worker] = time.monotonic()
        self._arrivals.append(Arrival(worker, slot, tally))

    def _died(self, worker: int) -> NoReturn:
        handle = self._handles[worker]
        handle.join(self._close_timeout_s)
        code = handle.exitcode
        how = "is still running but closed its connection" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        raise WorkerDied(
            f"{self._describe(worker)} (pid {handle.pid}) {how} without reporting an error: killed from outside, "
            f"out of memory, or a crash in native code of the env."
        )

    def region(self, worker: int, slot: int) -> torch.Tensor:
        return self.slab.region(worker, slot)

    def publish(self, write: Callable[[torch.Tensor], None]) -> int:
        return self.slab.publish(write)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.slab.stop[0] = 1
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + self._close_timeout_s
        for end_it in (None, "terminate", "kill"):
            for handle in self._handles:
                if end_it is not None and handle.exitcode is None:
                    getattr(handle, end_it)()
            for handle in self._handles:
                handle.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + 1.0
        self._selector.close()
        self.slab.close_descriptor()


class SharedMemoryLink:
    """The worker's end; unpickled in the worker's process."""

    def __init__(self, slab: Slab, worker: int, connection: Connection):
        self.worker = worker
        self._slab = slab
        self._connection = connection

    @property
    def slots(self) -> list:
        """This worker's slots, as views of the slab."""
        return [self._slab.slot(self.worker, index) for index in range(self._slab.spec.num_slots)]

    @property
    def stop(self) -> memoryview:
        """Nonzero once the trainer closes."""
        return self._slab.stop

    def acquire(self) -> int | None:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None  # the trainer closed, or is gone

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        return self._slab.refresh(read, version)

    def send(self, slot: int, tally: Tally) -> None:
        # Where the trainer closed meanwhile, or is gone, the next `acquire` says so.
        with contextlib.suppress(OSError):
            self._connection.send((slot, tally))

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(RemoteFailure.of(error))
