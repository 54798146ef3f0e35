"""The transport between hosts. Each worker has two connections to the trainer:

    connection   control messages, and failure detection: when it breaks, the worker is gone   (handshake.py)
    pair         the bytes, slots up and weights down, by torch.distributed, RPC or MPI         (p2p.py)

    trainer                            worker
    GRANT slot     ----------------->  fills it
    (receive is posted already)  <---  bytes of the slot
                   <-----------------  FULL slot, report
    bytes of the weights  ---------->  (receive is posted already)
    WEIGHTS version  --------------->  acts with them from its next batch on
                   <-----------------  HAVE version: newer ones may be sent

A worker gets the newest weights, one version at a time, and acts with the newest that it has. It waits for a version
only if its grant names one, as grants of sync batches do. So over a slow network, async workers act with older weights
and never wait.

Both ends post their receives as early as possible, so that gloo fills the memory in the background while envs step and
the trainer learns. The trainer sleeps in one selector over all connections; an idle worker costs nothing.

This is the trainer's end. The worker's end is `collectx/transport/network/link.py`.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from collectx.errors import RemoteFailure, WorkerDied, WorkerTimeout
from collectx.memory import batch_memory
from collectx.transport import messages
from collectx.transport.base import NO_WORK, Arrival, Departure, Joined, Reply, Request, Reset, SlotSpec, WeightWriters
from collectx.transport.connections import socket_of
from collectx.transport.network.admission import Admission, RemotePeer
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.p2p import POLL_S, TRAINER, PairConfig, received_message
from collectx.transport.network.weight_sync import WeightSync
from collectx.transport.peer import Handle, JoinState
from collectx.transport.slab import concatenate
from collectx.transport.supervisor import Supervisor


class NetworkTransport:
    """The trainer's end of the network transport. `endpoint` is where the trainer listens for workers.

    Args:
        events: called as `events(name, **fields)`, in any thread, when a peer is refused.
        timeout_s, backend, devices, options: see `PairConfig`. Received slots are on the first of the devices.
    """

    carries_objects = False

    def __init__(
        self,
        spec: SlotSpec,
        supervisor: Supervisor[RemotePeer],
        endpoint: Endpoint,
        *,
        timeout_s: float,
        events: Callable[..., None] = lambda name, **fields: None,
        backend: str = "gloo",
        devices: Sequence[str] = ("cpu", "cpu"),
        options: Mapping[str, Any] | None = None,
        interface: str | None = None,
    ):
        self.spec = spec
        self._layout = spec.layout()
        self._config = PairConfig(timeout_s, backend, tuple(devices), dict(options or {}))
        self._supervisor = supervisor
        self._workers = supervisor.workers
        # The memory of each slot, by worker and slot. Outlives the worker, whose last batches may not have been
        # gathered.
        self._memory: dict[tuple[int, int], torch.Tensor] = {}
        # Slots whose memory belongs to the consumer of their batch.
        self._leased: set[tuple[int, int]] = set()
        # Slots whose FULL has arrived, perhaps before their last bytes, and the replies that came after them.
        self._announced: list[tuple[RemotePeer, Arrival | Reply]] = []
        self._received: deque[Arrival | Departure | Joined | Reply] = deque()
        self._weight_sync = WeightSync(spec, self._workers, supervisor.send)
        self._is_closed = False
        self._admission = Admission(self._workers, spec, self._config, events, endpoint, interface)
        supervisor.watch(self._admission.readable, self._add_worker)
        self.endpoint = self._admission.endpoint

    @property
    def num_stepping(self) -> int:
        return self._supervisor.num_stepping

    def expect(self, worker: int, make_spec: Callable[[], dict[str, Any]]) -> None:
        self._admission.expect(worker, make_spec)

    def attach(self, worker: int, handle: Handle) -> None:
        self._supervisor.attach(self._workers[worker], handle)

    def grant(self, worker: int, slot: int, reset: Reset | None = None, version: int | None = None) -> None:
        peer = self._workers[worker]
        if version is not None:
            self._weight_sync.keep(version)
        self._send(peer, partial(self._send_grant, peer, slot, reset, version))

    def send_request(self, worker: int, request: Request) -> None:
        peer = self._workers[worker]
        message = messages.pack_signed(messages.REQUEST, (*request,), self.endpoint.secret)
        self._send(peer, partial(self._supervisor.send, peer, message))

    def _send(self, peer: RemotePeer, send: Callable[[], None]) -> None:
        if peer.state is JoinState.GONE:
            return  # `receive` is about to return its departure
        self._supervisor.granted(peer)
        if peer.has_joined:
            send()
        else:
            peer.queued_before_join.append(send)

    def _send_grant(self, peer: RemotePeer, slot: int, reset: Reset | None, version: int | None) -> None:
        key = peer.index, slot
        if key not in self._memory:
            self._memory[key] = received_message(self._layout.nbytes, self._config.devices[TRAINER])
        if version is not None:
            self._weight_sync.send_version(peer, version)
        else:
            version = self._weight_sync.newest_version(peer.index) if self.spec.require_latest else 0
        # The grant comes first, because the worker may be waiting for it, and the bytes come much later.
        self._supervisor.send(peer, messages.pack_grant(slot, reset, version))
        assert peer.pair is not None
        # If the pair is broken, so is the connection, which the supervisor notices.
        with contextlib.suppress(RuntimeError):
            peer.incoming[slot] = peer.pair.receive(self._memory[key])

    def receive(self) -> Arrival | Departure | Joined | Reply:
        while not self._received:
            if not self._supervisor.has_outstanding:
                raise RuntimeError(NO_WORK)
            self._process_events(POLL_S if self._announced else None)
        return self._received.popleft()

    def _process_events(self, timeout_s: float | None) -> None:
        for peer, message in self._supervisor.events(timeout_s):
            if isinstance(message, Exception):
                self._remove_worker(peer, message)
            else:
                self._handle_message(peer, message)
        self._complete_arrivals()

    def _add_worker(self) -> None:
        admitted = self._admission.take()
        if admitted is None:
            return
        peer, connection, pair = admitted
        if pair is None:
            self._supervisor.watch(connection.fileno(), partial(self._take_progress, peer, connection))
            return
        peer.pair = pair
        host = peer.info.get("host")
        peer.host = None if host == socket.gethostname() else host
        self._supervisor.connect(peer, connection)
        self._received.append(Joined(peer.index, peer.info))
        self._weight_sync.send(peer)
        for send in peer.queued_before_join:
            send()
        self._supervisor.renew_timer(peer)

    def _take_progress(self, peer: RemotePeer, connection: Connection) -> None:
        """Notes that a worker that has not joined has imported more modules."""
        try:
            connection.recv_bytes(0)
        except (EOFError, OSError):
            self._supervisor.unwatch(connection.fileno())
            connection.close()
            return
        if not peer.has_joined:
            _, _, imports = peer.progress or (0, 0, 0)
            self._supervisor.progressed(peer, (0, 0, imports + 1))

    def _handle_message(self, peer: RemotePeer, message: bytes) -> None:
        try:
            if message[:1] == messages.HAVE:
                self._weight_sync.acknowledge(peer)
                return
            if message[:1] == messages.PROGRESS:
                self._supervisor.progressed(peer, messages.unpack_progress(message))
                return
            if message[:1] == messages.FULL:
                slot, report = messages.unpack_full(message)
                if not 0 <= report.frames <= self.spec.rows * self.spec.steps:
                    raise ValueError(f"{report.frames} frames")
                self._announced.append((peer, Arrival(peer.index, slot, report)))
                # The worker was in time, even if the trainer has not listened for long, and the last bytes are still to
                # come.
                self._supervisor.renew_timer(peer)
                return
            if message[:1] == messages.REPLY:
                value, failure = messages.unpack_signed(message, self.endpoint.secret)
                name = self._supervisor.describe(peer)
                cause = failure and RemoteFailure.from_json(failure.encode()).rebuild(name)
                self._announced.append((peer, Reply(peer.index, value, cause)))
                return
            error = RemoteFailure.from_json(message[1:]).rebuild(self._supervisor.describe(peer))
        except Exception as failure:
            name = self._supervisor.describe(peer)
            # An invalid message of one worker must not end the run.
            error = WorkerDied(f"{name} is gone: it sent an invalid message ({failure!r})")
        self._remove_worker(peer, error)

    def _complete_arrivals(self) -> None:
        """Delivers complete slots and replies, in the order in which each worker sent them."""
        announced, self._announced = self._announced, []
        incomplete: set[RemotePeer] = set()
        for peer, event in announced:
            if peer.state is JoinState.GONE:
                continue
            if peer in incomplete:
                self._announced.append((peer, event))
                continue
            if isinstance(event, Reply):
                self._supervisor.replied(peer)
                self._received.append(event)
                continue
            incoming = peer.incoming.get(event.slot)
            if incoming is None:
                continue
            if not incoming.done():
                incomplete.add(peer)
                self._announced.append((peer, event))
                continue
            try:
                self._memory[peer.index, event.slot] = incoming.wait()
            except RuntimeError as error:
                incomplete.add(peer)
                if not self._supervisor.has_message(peer):
                    self._remove_worker(peer, WorkerDied(f"{self._supervisor.describe(peer)}: {error}"))
                continue
            del peer.incoming[event.slot]
            self._supervisor.delivered(peer)
            self._received.append(event)

    def _remove_worker(self, peer: RemotePeer, error: Exception) -> None:
        if peer.is_making_pair and not peer.has_joined and isinstance(error, WorkerTimeout):
            error.add_note(
                f"Worker {peer.index} on {peer.info.get('host')} reached the trainer's port "
                f"{self.endpoint.port}, but not the port of {self._config.backend}, which the system chooses, so a "
                "firewall probably blocks it. Open all TCP ports between the two hosts, or choose another network "
                "with backend.interface."
            )
        has_joined = peer.has_joined
        # The departure comes first, because Ctrl-C may end the wait for the process.
        self._received.append(Departure(peer.index, error))
        self._admission.withdraw(peer)
        self._supervisor.remove(peer, hangs=isinstance(error, WorkerTimeout))
        if has_joined:
            self._weight_sync.remove(peer)
            assert peer.pair is not None
            peer.pair.close()
            # Until the pair was closed, these slots could still be written to.
            for slot in peer.incoming:
                self._memory.pop((peer.index, slot), None)

    def gather(self, parts: Sequence[Arrival], copy: bool) -> torch.Tensor:
        memories = [self._memory[part.worker, part.slot][: self._layout.nbytes] for part in parts]
        if len(memories) > 1:
            runs = self._layout.runs(0, self.spec.rows)
            return concatenate(self.spec, [(memory, runs) for memory in memories])
        (memory,) = memories
        return batch_memory.copy(memory) if copy else memory

    def lease(self, parts: Sequence[Arrival]) -> torch.Tensor | None:
        if len(parts) > 1:
            return None
        self._leased |= {(part.worker, part.slot) for part in parts}
        return self.gather(parts, copy=False)

    def release(self, parts: Sequence[Arrival]) -> None:
        for part in parts:
            if (part.worker, part.slot) in self._leased:
                self._leased.remove((part.worker, part.slot))
                del self._memory[part.worker, part.slot]

    def publish(self, writes: WeightWriters) -> int:
        # Handles acknowledgements first, so that these workers get the new version at once.
        if self._joined():
            self._process_events(0.0)
        return self._weight_sync.publish(writes)

    def newest_weights(self) -> torch.Tensor:
        return self._weight_sync.newest_weights()

    def _joined(self) -> list[RemotePeer]:
        return [peer for peer in list(self._workers.values()) if peer.has_joined]

    def preempt(self, requested: bool) -> None:
        pass

    def interrupt(self) -> None:
        for peer in self._joined():
            assert peer.connection is not None
            with contextlib.suppress(OSError), socket_of(peer.connection) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        joined = self._joined()
        self._admission.stop()
        # Before the listener closes, because a worker that is refused would report that it cannot reach the trainer.
        # Spares workers that are making their pairs until the listener is closed: if one died now, gloo would wait for
        # its connection until the timeout.
        self._supervisor.kill_workers(JoinState.GONE)
        self._admission.close()
        self._supervisor.kill_workers(JoinState.EXPECTED, JoinState.PAIRING)
        self._supervisor.close()
        for peer in joined:
            assert peer.pair is not None
            peer.pair.close()
