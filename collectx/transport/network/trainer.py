"""Transport between hosts: every worker has two ways to the trainer, both its own.

    connection   control messages, and who is alive: when it breaks, the worker is gone      (rendezvous.py)
    pair         the bytes, slots up and weights down, by torch.distributed or torch RPC     (pair.py)

    trainer                            worker
    GRANT slot     ----------------->  fills it
    (receive is posted already)  <---  bytes of the slot, with a stamp at their end
                   <-----------------  FULL slot, report
    bytes of the weights  ---------->  (receive is posted already)
    WEIGHTS version  --------------->  acts with them from its next batch on
                   <-----------------  HAVE version: newer ones may be sent

A worker is sent the newest weights, one version at a time, and acts with the newest that it has; it waits for a version
only where its grant names it, as those of sync batches do. So a slow network makes async workers act with older
weights, and never makes them wait.

Both ends post their receives before anything is sent, so that gloo fills the memory in the background while envs step
and the trainer learns. The trainer sleeps in one epoll over the connections; an idle worker costs it nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from collectx.batch import Layout
from collectx.errors import RemoteFailure, RendezvousError, WorkerDied, WorkerTimeout
from collectx.transport import messages
from collectx.transport.base import NO_RESET, Arrival, BatchReport, Departure, Joined, SlabSpec, Write
from collectx.transport.connections import socket_of
from collectx.transport.network.handshake import Endpoint, Listener, enable_keepalive, receive_hello
from collectx.transport.network.p2p import (
    STAMP_BYTES,
    TRAINER,
    Incoming,
    Pair,
)
from collectx.transport.network.weight_sync import WeightSync
from collectx.transport.network.worker import POLL_S, LinkConfig
from collectx.transport.slab import join
from collectx.transport.supervisor import Handle, Supervisor


@dataclass
class _Peer:
    """A worker that has joined."""

    worker: int
    life: int
    connection: Connection
    pair: Pair
    info: dict[str, Any]
    num_grants: int = 0
    incoming: dict[int, Incoming] = field(default_factory=dict)

    def reject(self) -> None:
        """Breaks everything off, by which the worker knows that it shall end."""
        self.connection.close()
        self.pair.close()


class NetworkTransport:
    """The trainer's end.

    Args:
        spec: the slots; `joined` only says how batches are made.
        supervisor: where workers are plugged in; closed with the transport.
        addresses, port, secret, interface: see `Listener`.
        task: `task(worker, life)` is what a worker of that index is told, as JSON can hold it.
        timeout_s: see `LinkConfig`.
        events: called as `events(name, **fields)` from any thread, when a peer was refused.
        backend, devices, options: see `make_pair`; filled slots lie on the first of the devices.

    Attributes:
        endpoint: where the trainer listens, for workers.
    """

    def __init__(
        self,
        spec: SlabSpec,
        supervisor: Supervisor,
        addresses: Sequence[str],
        port: int,
        secret: bytes,
        task: Callable[[int, int], dict[str, Any]],
        timeout_s: float,
        events: Callable[..., None] = lambda name, **fields: None,
        backend: str = "gloo",
        devices: Sequence[str] = ("cpu", "cpu"),
        options: Mapping[str, Any] | None = None,
        interface: str | None = None,
    ):
        self.spec = spec
        self._layout = Layout(spec.leaves, spec.rows, spec.steps)
        self._config = LinkConfig(
            spec.rows,
            spec.steps,
            spec.num_slots,
            spec.weights_nbytes,
            timeout_s,
            backend,
            tuple(devices),
            dict(options or {}),
        )
        self._supervisor = supervisor
        self._task = task
        self._report = events
        # Indices for which a worker may come, with the life that it will have. Shared with the greeting threads.
        self._expected = dict.fromkeys(range(spec.num_workers), 0)
        # The lives that are not over: who comes in another, or in one that is given up meanwhile, comes too late.
        self._lives = dict(self._expected)
        # Workers that are known, and to which the pair is being made, with their addresses. Shared likewise.
        self._pairing: dict[int, str] = {}
        # Workers that are gone, until others are expected in their places.
        self._gone: set[int] = set()
        self._lock = threading.Lock()
        self._joining: queue.SimpleQueue[_Peer] = queue.SimpleQueue()
        self._wakeup_receiver, self._wakeup_sender = os.pipe()
        self._peers: dict[int, _Peer] = {}
        self._memory: dict[tuple[int, int], torch.Tensor] = {}
        # Grants to workers that have not joined yet.
        self._early_grants: dict[int, list[tuple[int, int]]] = {}
        # Slots whose report has arrived, perhaps before their last bytes.
        self._announced: list[tuple[_Peer, int, BatchReport]] = []
        self._events: deque[Arrival | Departure | Joined] = deque()
        self._weight_sync = WeightSync(spec.weights_nbytes, supervisor.send)
        self._closed = False
        try:
            self._listener = Listener(addresses, port, secret, self._admit, self._refused, interface)
        except BaseException:
            self._close_wakeup()
            raise
        supervisor.watch(self._wakeup_receiver, _WAKEUP)
        self.endpoint: Endpoint = self._listener.endpoint

    # --- in the greeting threads ---

    def _admit(self, connection: Connection, address: str) -> None:
        """Agrees with a worker that knows the secret; `receive` will take it in."""
        enable_keepalive(connection, self._config.timeout_s)
        hello = receive_hello(connection)
        worker = hello.get("worker")
        with self._lock:
            # In Python, JSON's `true` is an int.
            life = self._expected.pop(worker, None) if type(worker) is int else None
        if not isinstance(worker, int) or life is None:
            reason = f"worker {worker} is not expected: it has joined already, or is above the number of workers"
            connection.send_bytes(json.dumps({"refused": reason}).encode())
            raise RendezvousError(reason)
        try:
            reply = {"task": self._task(worker, life), "link": vars(self._config)}
            connection.send_bytes(json.dumps(reply).encode())
            self._pairing[worker] = str(hello.get("host"))
            pair = self._config.make_pair(connection, TRAINER, address)
        except Exception as error:
            with self._lock:
                if self._lives.get(worker) == life:
                    self._expected[worker] = life
            raise RendezvousError(f"worker {worker}: {error!r}") from error
        self._pairing.pop(worker, None)
        peer = _Peer(worker, life, connection, pair, hello)
        with self._lock:
            if not self._closed:
                self._joining.put(peer)
                os.write(self._wakeup_sender, b"\0")
                return
        peer.reject()

    def _refused(self, address: str, reason: str) -> None:
        if not self._closed:
            self._report("peer_refused", address=address, reason=reason)

    # --- in the trainer's thread ---

    def attach(self, worker: int, handle: Handle) -> None:
        """Takes the started process of a worker, where the trainer has started one."""
        self._supervisor.attach(worker, handle)

    @property
    def handles(self) -> dict[int, Any]:
        """What was attached, of workers that are there, or about to come."""
        return self._supervisor.handles

    def expect(self, worker: int, life: int) -> None:
        """Lets another worker of this index join."""
        self._gone.discard(worker)
        with self._lock:
            self._expected[worker] = self._lives[worker] = life

    def grant(self, worker: int, slot: int, reset: int = NO_RESET) -> None:
        if worker in self._gone:
            return  # as `receive` is about to say
        self._supervisor.granted(worker)
        peer = self._peers.get(worker)
        if peer is None:
            self._early_grants.setdefault(worker, []).append((slot, reset))
        else:
            self._send_grant(peer, slot, reset)

    def _send_grant(self, peer: _Peer, slot: int, reset: int) -> None:
        key = peer.worker, slot
        if key not in self._memory:
            self._memory[key] = torch.zeros(
                self._layout.nbytes + STAMP_BYTES, dtype=torch.uint8, device=self._config.devices[TRAINER]
            )
        peer.num_grants += 1
        # First, as the worker may be waiting for it; its bytes come much later.
        self._supervisor.send(
            peer.worker,
            messages.pack_grant(
                slot, reset, self._weight_sync.version_of(peer.worker) if self.spec.require_latest else 0
            ),
        )
        # Where the pair is broken, so is the connection, and the supervisor will say so.
        with contextlib.suppress(RuntimeError):
            peer.incoming[slot] = peer.pair.receive(self._memory[key], peer.num_grants)

    def receive(self) -> Arrival | Departure | Joined:
        while not self._events:
            if not self._supervisor.has_outstanding:
                raise RuntimeError("no worker was granted a slot, so there is nothing to receive")
            self._process_events(POLL_S if self._announced else None)
        return self._events.popleft()

    def _process_events(self, at_most_s: float | None) -> None:
        for key, message in self._supervisor.events(at_most_s):
            if key is _WAKEUP:
                os.read(self._wakeup_receiver, 1)
                self._add_worker(self._joining.get())
            elif isinstance(message, Exception):
                self._remove_worker(key, message)
            elif message is not None and key in self._peers:
                self._handle_message(self._peers[key], message)
        self._complete_arrivals()

    def _add_worker(self, peer: _Peer) -> None:
        worker = peer.worker
        if worker in self._peers or self._lives.get(worker) != peer.life:
            peer.reject()
            return
        self._peers[worker] = peer
        host = peer.info.get("host")
        self._supervisor.add_connection(worker, peer.connection, None if host == socket.gethostname() else host)
        self._events.append(Joined(worker, {key: value for key, value in peer.info.items() if key != "worker"}))
        self._weight_sync.joined(worker, peer.pair)
        for slot, reset in self._early_grants.pop(worker, ()):
            self._send_grant(peer, slot, reset)
        self._supervisor.restart_clock(worker)

    def _handle_message(self, peer: _Peer, message: bytes) -> None:
        kind, describe = message[:1], self._supervisor.describe
        if kind == messages.HAVE:
            self._weight_sync.arrived(peer.worker)
            return
        try:
            if kind == messages.FULL:
                content: Any = messages.unpack_full(message)
            else:
                content = RemoteFailure.from_json(message[1:]).rebuild(describe(peer.worker))
        except Exception as error:
            # Whatever it says, the others' run goes on.
            reason = f"is gone: it sent what is no message of collectx ({error!r})"
            self._remove_worker(peer.worker, WorkerDied(f"{describe(peer.worker)} {reason}"))
            return
        if isinstance(content, Exception):
            self._remove_worker(peer.worker, content)
        else:
            self._announced.append((peer, *content))
            # It was in time, also where the trainer did not listen for long and the last bytes are still to come.
            self._supervisor.restart_clock(peer.worker)

    def _complete_arrivals(self) -> None:
        """Delivers the slots of which all is here, those of one worker in the order in which it sent them."""
        announced, self._announced = self._announced, []
        incomplete: set[int] = set()
        for peer, slot, report in announced:
            if self._peers.get(peer.worker) is not peer or slot not in peer.incoming:
                continue  # it is gone
            incoming = peer.incoming[slot]
            if peer.worker in incomplete or not incoming.done():
                incomplete.add(peer.worker)
                self._announced.append((peer, slot, report))
                continue
            try:
                self._memory[peer.worker, slot] = incoming.wait()
            except RuntimeError as error:
                if not self._supervisor.has_message(peer.worker):
                    self._remove_worker(peer.worker, WorkerDied(f"{self._supervisor.describe(peer.worker)}: {error}"))
                continue
            del peer.incoming[slot]
            self._supervisor.delivered(peer.worker)
            self._events.append(Arrival(peer.worker, slot, report))

    def _remove_worker(self, worker: int, error: Exception) -> None:
        if worker in self._pairing and isinstance(error, WorkerTimeout):
            error.add_note(
                f"Worker {worker} on {self._pairing[worker]} has reached the trainer's port {self.endpoint.port}, but "
                f"the connection of {self._config.backend} between the two, whose port the system chooses, could not "
                "be made: a firewall between them lets the one port through and not the other. It must let all TCP "
                "ports through, or choose another network with backend.interface."
            )
        self._supervisor.remove(worker)
        self._gone.add(worker)
        self._early_grants.pop(worker, None)
        with self._lock:
            self._expected.pop(worker, None)
            self._lives.pop(worker, None)
        peer = self._peers.pop(worker, None)
        if peer is not None:
            self._weight_sync.left(worker)
            peer.pair.close()
            # The memory may still be written to until the pair is gone.
            for slot in peer.incoming:
                self._memory.pop((worker, slot), None)
        self._events.append(Departure(worker, error))

    def gather(self, parts: Sequence[Arrival], copy: bool) -> torch.Tensor:
        memories = [self._memory[part.worker, part.slot][: self._layout.nbytes] for part in parts]
        if len(memories) > 1:
            runs = self._layout.runs(0, self.spec.rows)
            return join(self.spec, [(memory, runs) for memory in memories])
        return memories[0].clone() if copy else memories[0]

    def publish(self, write: Write) -> int:
        self._process_acknowledgements()
        return self._weight_sync.publish(write)

    def publish_to(self, writes: Mapping[int, Write]) -> int:
        self._process_acknowledgements()
        return self._weight_sync.publish_to(writes)

    def _process_acknowledgements(self) -> None:
        """Who has the version before gets the next one at once."""
        if self._peers:
            self._process_events(0.0)

    def preempt(self, requested: bool) -> None:
        pass

    def interrupt(self) -> None:
        for peer in list(self._peers.values()):
            with contextlib.suppress(OSError), socket_of(peer.connection) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._supervisor.terminate_unconnected()
        self._listener.close()
        while not self._joining.empty():
            self._joining.get().reject()
        self._supervisor.close()
        while self._peers:
            self._peers.popitem()[1].pair.close()
        self._close_wakeup()

    def _close_wakeup(self) -> None:
        os.close(self._wakeup_receiver)
        os.close(self._wakeup_sender)


_WAKEUP = object()
