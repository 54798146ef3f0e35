"""The transport between processes of one machine. Slots and weights are in one slab; control messages, with slot
numbers, go over a socket pair per worker.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import deque
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from collectx.errors import RemoteFailure, WorkerTimeout
from collectx.transport import messages
from collectx.transport.base import NO_WORK, Arrival, Departure, Fill, Reply, Request, Reset, SlotReport, SlotSpec
from collectx.transport.inference_channel import InferenceChannel, InferenceClient
from collectx.transport.peer import Handle, Peer
from collectx.transport.slab import NO_WORKER, Slab, SlabLink, SlabTransport
from collectx.transport.supervisor import Supervisor


@dataclass(eq=False)
class _LocalPeer(Peer):
    """The record of a worker's process; see `Peer`. `remote_end` is the worker's end of the connection, until the
    process has inherited it."""

    remote_end: Connection | None = None


class SharedMemoryTransport(SlabTransport):
    """The trainer's end. `close` also closes the supervisor and `inference`."""

    def __init__(self, spec: SlotSpec, supervisor: Supervisor[_LocalPeer], inference: InferenceChannel | None = None):
        super().__init__(spec, shared=True)
        self.inference = inference
        self._supervisor = supervisor
        self._workers = supervisor.workers
        self._events: deque[Arrival | Departure | Reply] = deque()
        self._closed = False

    @property
    def num_stepping(self) -> int:
        return self._supervisor.num_stepping

    def link(self, worker: int, incarnation: int | None = None) -> SharedMemoryLink:
        """Returns a new worker's end, to be pickled as an argument of the worker's process; call it once per process.
        The index after the last worker's means the inference server. `incarnation` is the worker's incarnation, if the
        inference server acts for it."""
        ours, theirs = Pipe(duplex=True)
        peer = _LocalPeer(worker, remote_end=theirs)
        if worker < self.spec.num_workers:
            peer.counts = self.slab.progress(worker)
            for kind in range(len(peer.counts)):
                peer.counts[kind] = 0  # of the worker's earlier process
        self._supervisor.connect(self._supervisor.add(peer), ours)
        client = None
        if incarnation is not None and self.inference is not None:
            client = self.inference.client(worker, incarnation)
        return SharedMemoryLink(self.slab, worker if worker < self.spec.num_workers else NO_WORKER, theirs, client)

    def attach(self, worker: int, handle: Handle) -> None:
        peer = self._workers[worker]
        self._close_remote_end(peer)
        self._supervisor.attach(peer, handle)

    def _close_remote_end(self, peer: _LocalPeer) -> None:
        """Closes this process's copy of the worker's end, which the worker's process has inherited."""
        if peer.remote_end is not None:
            peer.remote_end.close()
            peer.remote_end = None

    def grant(self, worker: int, slot: int, reset: Reset | None = None, version: int | None = None) -> None:
        pointer = 0 if version is None else self.slab.pointer_to(version)
        self._send(worker, messages.pack_grant(self.slab.region_of(worker, slot), reset, pointer))

    def send_request(self, worker: int, request: Request) -> None:
        self._send(worker, messages.REQUEST + cloudpickle.dumps((*request,)))

    def _send(self, index: int, message: bytes) -> None:
        peer = self._workers.get(index)
        if peer is None or not peer.has_joined:
            return  # `receive` is about to return its departure
        self._supervisor.granted(peer)
        self._supervisor.send(peer, message)

    def receive(self) -> Arrival | Departure | Reply:
        while not self._events:
            if not self._supervisor.has_outstanding:
                raise RuntimeError(NO_WORK)
            for peer, message in self._supervisor.events():
                self._handle_message(peer, message)
        return self._events.popleft()

    def _handle_message(self, peer: _LocalPeer, message: bytes | Exception) -> None:
        event: Arrival | Reply
        if isinstance(message, WorkerTimeout):
            peer, message = self._find_late(peer, message)
        if isinstance(message, bytes) and message[:1] == messages.FAILED:
            message = pickle.loads(message[1:]).rebuild(self._supervisor.describe(peer))
        if not isinstance(message, bytes):
            # The departure comes first, because Ctrl-C may end the wait for the process.
            self._events.append(Departure(peer.index, message))
            self._supervisor.remove(peer, hangs=isinstance(message, WorkerTimeout))
            return
        if message[:1] == messages.FULL:
            event = self._arrival(peer.index, *messages.unpack_full(message))
            self._supervisor.delivered(peer)
        else:
            event = self._unpack_reply(peer, message[1:])
            self._supervisor.replied(peer)
        self._events.append(event)

    def _find_late(self, peer: _LocalPeer, error: WorkerTimeout) -> tuple[_LocalPeer, Exception]:
        """Returns the process to blame for a late worker, and its error. If the worker is waiting for actions, this is
        a worker that has not posted its request; if all have, the inference server."""
        limit, is_server = peer.limit, peer.index == self.spec.num_workers
        if self.inference is None or limit is None or is_server or not self.inference.is_waiting(peer.index):
            return peer, error
        others = [other for index, other in self._workers.items() if index < self.spec.num_workers and other.limit]
        busy = [other for other in others if not self.inference.is_waiting(other.index)]
        late = busy[0] if busy else self._workers[self.spec.num_workers]
        for other in others:
            self._supervisor.renew_timer(other)
        return late, self._supervisor.timeout_error(late, limit)

    def _unpack_reply(self, peer: _LocalPeer, pickled: bytes) -> Reply:
        try:
            value, failure = pickle.loads(pickled)
        except Exception as refusal:
            refusal.add_note("raised while the trainer was unpickling a worker's answer")
            return Reply(peer.index, None, refusal)
        error = None if failure is None else failure.rebuild(self._supervisor.describe(peer))
        return Reply(peer.index, value, error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        for peer in self._workers.values():
            self._close_remote_end(peer)
        self._supervisor.close()
        self.slab.leases.close()
        self.slab.close_descriptor()
        if self.inference is not None:
            self.inference.close()


class SharedMemoryLink(SlabLink):
    """A worker's end; unpickled in the worker's process."""

    def __init__(self, slab: Slab, worker: int, connection: Connection, inference: InferenceClient | None = None):
        super().__init__(slab, worker)
        self._inference = inference
        self._connection = connection

    def connect_inference(self) -> InferenceClient:
        """Returns the client of the inference server. Call it once, in the worker's process."""
        assert self._inference is not None
        self._inference.connect(self._connection)
        return self._inference

    def fileno(self) -> int:
        """Returns a file descriptor that is readable when `acquire` does not block."""
        return self._connection.fileno()

    def acquire(self) -> Fill | Request | None:
        while True:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                return None  # the trainer closed, or is gone
            if message[:1] != messages.REQUEST:
                grant, self.pointer = messages.unpack_grant(message)
                return grant
            try:
                return Request(*pickle.loads(message[1:]))
            except Exception as error:
                self.reply(None, error)

    def reply(self, value: Any, error: Exception | None = None) -> None:
        try:
            answer = cloudpickle.dumps((value, None if error is None else RemoteFailure.of(error)))
        except Exception as refusal:
            refusal.add_note(
                f"raised while the worker was pickling its answer, which is of type {type(value).__name__}"
            )
            answer = pickle.dumps((None, RemoteFailure.of(refusal)))
        self._send(messages.REPLY + answer)

    def send(self, slot: int, report: SlotReport) -> None:
        self._send(messages.pack_full(slot, report))

    def fail(self, error: BaseException) -> None:
        self._send(messages.FAILED + pickle.dumps(RemoteFailure.of(error)))

    def _send(self, message: bytes) -> None:
        # If the trainer has closed or is gone, the next `acquire` returns None.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)
