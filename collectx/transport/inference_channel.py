"""Carries requests for actions from workers to the inference server of their machine. The slots contain the
observations and get the actions; a request says where, and the server sends it back when the actions are written.

    worker 0 --request--.                                     .--request--> worker 0
    worker 1 --request--+--> one pipe --> inference server ---+--request--> worker 1

Writes of up to 512 bytes to a pipe are atomic, so a killed worker leaves no part of a request. The trainer keeps all
ends open, so that a worker's replacement can use the same pipes.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import perf_counter
from typing import NamedTuple

from collectx.memory import SharedMemory
from collectx.transport.connections import disconnect_poll

# The step in a request that ends a batch; the server does not send it back.
NO_STEP = 2**32 - 1
_REQUEST = struct.Struct("<qIIHHI")
# A multiple of the size of a request.
_READ_BYTES = 2**11 * _REQUEST.size


class ActionRequest(NamedTuple):
    """A request for the actions of one group of a worker's envs.

    Attributes:
        pointer: the pointer to the weights to act with, with `SlotSpec.grants_name_version`; see `Slab.pointer_to`.
        incarnation: the worker's incarnation; requests of its earlier processes are discarded.
        step: index of the step whose observations are in the slot; `NO_STEP`: the group takes no further step in this
            batch.
    """

    pointer: int
    incarnation: int
    step: int
    worker: int
    group: int
    slot: int


class InferenceChannel:
    """All ends of the pipes, in the trainer's process."""

    def __init__(self, num_workers: int):
        # The two ends of each pipe, for reading and for writing.
        self._requests = Pipe(duplex=False)
        self._replies = [Pipe(duplex=False) for _ in range(num_workers)]
        # A byte for each worker, nonzero while it waits for actions.
        self._shared: SharedMemory | None = SharedMemory("inference")
        self._waiting = self._shared.map(num_workers).numpy()

    def client(self, worker: int, incarnation: int) -> InferenceClient:
        """Returns the ends for one process of a worker, to be pickled as an argument of the process."""
        assert self._shared is not None
        self._waiting[worker] = 0
        return InferenceClient(self._requests[1], self._replies[worker][0], self._shared, worker, incarnation)

    def server(self) -> InferenceServerEnd:
        """Returns the server's ends, to be pickled as an argument of its process."""
        return InferenceServerEnd(self._requests[0], [reply for _, reply in self._replies])

    def is_waiting(self, worker: int) -> bool:
        """Whether the worker waits for actions."""
        return bool(self._waiting[worker])

    def close(self) -> None:
        """Closes the ends in this process."""
        for ends in (self._requests, *self._replies):
            for end in ends:
                end.close()
        self._shared = None


@dataclass
class InferenceClient:
    """A worker's ends of the pipes. `wait_s` is the time for which the worker has waited for actions."""

    _requests: Connection
    _replies: Connection
    _shared: SharedMemory
    _worker: int
    _incarnation: int
    wait_s: float = 0.0

    def connect(self, trainer: Connection) -> None:
        """Makes `wait` return when the trainer closes this connection or is gone. Call it once, in the worker's
        process, before other methods."""
        self._waiting = self._shared.map(self._worker + 1).numpy()
        self._poll = disconnect_poll(trainer)
        self._poll.register(self._replies.fileno(), select.POLLIN)
        self._pending: dict[int, ActionRequest] = {}

    def post(self, group: int, slot: int, step: int, pointer: int) -> None:
        """Requests actions for the observations of a step. Does not block."""
        request = ActionRequest(pointer, self._incarnation, step, self._worker, group, slot)
        os.write(self._requests.fileno(), _REQUEST.pack(*request))
        if step != NO_STEP:
            self._pending[group] = request

    def wait(self, group: int) -> bool:
        """Blocks until the actions of the group's last request are written. Returns False if the trainer has closed the
        connection, which it does after `collector.worker_timeout_s`, or is gone."""
        if group in self._pending:
            began, self._waiting[self._worker] = perf_counter(), 1
            while group in self._pending:
                if any(descriptor != self._replies.fileno() for descriptor, _ in self._poll.poll()):
                    return False
                for request in unpack(os.read(self._replies.fileno(), _READ_BYTES)):
                    if self._pending.get(request.group) == request:
                        del self._pending[request.group]
            self._waiting[self._worker] = 0
            self.wait_s += perf_counter() - began
        return True


@dataclass
class InferenceServerEnd:
    """The inference server's ends of the pipes."""

    _requests: Connection
    _replies: Sequence[Connection]

    def fileno(self) -> int:
        """Returns the descriptor that is readable when there are requests."""
        return self._requests.fileno()

    def receive(self) -> Sequence[ActionRequest]:
        """Returns the pending requests; blocks until there is one."""
        return unpack(os.read(self._requests.fileno(), _READ_BYTES))

    def reply(self, request: ActionRequest) -> None:
        """Tells the worker that the actions of `request` are written."""
        os.write(self._replies[request.worker].fileno(), _REQUEST.pack(*request))


def unpack(content: bytes) -> list[ActionRequest]:
    """Returns the requests that bytes from a pipe contain."""
    return [ActionRequest(*fields) for fields in _REQUEST.iter_unpack(content)]
