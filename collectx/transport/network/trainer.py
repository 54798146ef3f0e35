"""Transport between hosts: every worker has two ways to the trainer, both its own.

    connection   control messages, and who is alive: when it breaks, the worker is gone      (rendezvous.py)
    pair         the bytes, slots up and weights down, by torch.distributed or torch RPC     (pair.py)

    trainer                            worker
    GRANT slot     ----------------->  fills it
    (receive is posted already)  <---  bytes of the slot, with a stamp at their end
                   <-----------------  FULL slot, tally
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
from collectx.transport.base import GO_ON, Arrival, Departure, Joined, SlabSpec, Tally, Write
from collectx.transport.connections import socket_of
from collectx.transport.network.handshake import Listener, Meeting, first_words, keep_alive
from collectx.transport.network.p2p import (
    STAMP_BYTES,
    TRAINER,
    Incoming,
    Pair,
)
from collectx.transport.network.weight_sync import Publication
from collectx.transport.network.worker import TAIL_S, Terms
from collectx.transport.slab import join
from collectx.transport.supervisor import Handle, Switchboard


@dataclass
class _Peer:
    """A worker that has joined."""

    worker: int
    life: int
    connection: Connection
    pair: Pair
    where: dict[str, Any]
    num_grants: int = 0
    incoming: dict[int, Incoming] = field(default_factory=dict)

    def turn_away(self) -> None:
        """Breaks everything off, by which the worker knows that it shall end."""
        self.connection.close()
        self.pair.close()


class DistributedTransport:
    """The trainer's end.

    Args:
        spec: the slots; `joined` only says how batches are made.
        switchboard: where workers are plugged in; closed with the transport.
        addresses, port, secret, interface: see `Listener`.
        task: `task(worker, life)` is what a worker of that index is told, as JSON can hold it.
        timeout_s: see `Terms`.
        events: called as `events(name, **fields)` from any thread, when a peer was refused.
        backend, devices, options: see `make_pair`; filled slots lie on the first of the devices.

    Attributes:
        meeting: where the trainer listens, for workers.
    """

    def __init__(
        self,
        spec: SlabSpec,
        switchboard: Switchboard,
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
        self._terms = Terms(
            spec.rows,
            spec.steps,
            spec.num_slots,
            spec.weights_nbytes,
            timeout_s,
            backend,
            tuple(devices),
            dict(options or {}),
        )
        self._switchboard = switchboard
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
        self._bell_in, self._bell_out = os.pipe()
        self._peers: dict[int, _Peer] = {}
        self._memory: dict[tuple[int, int], torch.Tensor] = {}
        # Grants to workers that have not joined yet.
        self._early: dict[int, list[tuple[int, int]]] = {}
        # Slots whose tally has arrived, perhaps before their last bytes.
        self._tails: list[tuple[_Peer, int, Tally]] = []
        self._events: deque[Arrival | Departure | Joined] = deque()
        self._publication = Publication(spec.weights_nbytes, switchboard.send)
        self._closed = False
        try:
            self._listener = Listener(addresses, port, secret, self._greet, self._refused, interface)
        except BaseException:
            self._close_bell()
            raise
        switchboard.watch(self._bell_in, _BELL)
        self.meeting: Meeting = self._listener.meeting

    # --- in the greeting threads ---

    def _greet(self, connection: Connection, address: str) -> None:
        """Agrees with a worker that knows the secret; `receive` will take it in."""
        keep_alive(connection, self._terms.timeout_s)
        hello = first_words(connection)
        worker = hello.get("worker")
        with self._lock:
            # In Python, JSON's `true` is an int.
            life = self._expected.pop(worker, None) if type(worker) is int else None
        if not isinstance(worker, int) or life is None:
            reason = f"worker {worker} is not expected: it has joined already, or is above the number of workers"
            connection.send_bytes(json.dumps({"refused": reason}).encode())
            raise RendezvousError(reason)
        try:
            told = {"task": self._task(worker, life), "terms": vars(self._terms)}
            connection.send_bytes(json.dumps(told).encode())
            self._pairing[worker] = str(hello.get("host"))
            pair = self._terms.pair(connection, TRAINER, address)
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
                os.write(self._bell_out, b"\0")
                return
        peer.turn_away()

    def _refused(self, address: str, reason: str) -> None:
        if not self._closed:
            self._report("peer_refused", address=address, reason=reason)

    # --- in the trainer's thread ---

    def attach(self, worker: int, handle: Handle) -> None:
        """Takes the started process of a worker, where the trainer has started one."""
        self._switchboard.attach(worker, handle)

    @property
    def handles(self) -> dict[int, Any]:
        """What was attached, of workers that are there, or about to come."""
        return self._switchboard.handles

    def expect(self, worker: int, life: int) -> None:
        """Lets another worker of this index join."""
        self._gone.discard(worker)
        with self._lock:
            self._expected[worker] = self._lives[worker] = life

    def grant(self, worker: int, slot: int, order: int = GO_ON) -> None:
        if worker in self._gone:
            return  # as `receive` is about to say
        self._switchboard.owes(worker)
        peer = self._peers.get(worker)
        if peer is None:
            self._early.setdefault(worker, []).append((slot, order))
        else:
            self._send_grant(peer, slot, order)

    def _send_grant(self, peer: _Peer, slot: int, order: int) -> None:
        place = peer.worker, slot
        if place not in self._memory:
            self._memory[place] = torch.zeros(
                self._layout.nbytes + STAMP_BYTES, dtype=torch.uint8, device=self._terms.devices[TRAINER]
            )
        peer.num_grants += 1
        # First, as the worker may be waiting for it; its bytes come much later.
        self._switchboard.send(
            peer.worker,
            messages.pack_grant(slot, order, self._publication.version_of(peer.worker) if self.spec.newest else 0),
        )
        # Where the pair is broken, so is the connection, and the switchboard will say so.
        with contextlib.suppress(RuntimeError):
            peer.incoming[slot] = peer.pair.receive(self._memory[place], peer.num_grants)

    def receive(self) -> Arrival | Departure | Joined:
        while not self._events:
            if not self._switchboard.is_waiting:
                raise RuntimeError("no worker was granted a slot, so there is nothing to receive")
            self._hear(TAIL_S if self._tails else None)
        return self._events.popleft()

    def _hear(self, at_most_s: float | None) -> None:
        for key, message in self._switchboard.events(at_most_s):
            if key is _BELL:
                os.read(self._bell_in, 1)
                self._welcome(self._joining.get())
            elif isinstance(message, Exception):
                self._depart(key, message)
            elif message is not None and key in self._peers:
                self._take(self._peers[key], message)
        self._finish()

    def _welcome(self, peer: _Peer) -> None:
        worker = peer.worker
        if worker in self._peers or self._lives.get(worker) != peer.life:
            peer.turn_away()
            return
        self._peers[worker] = peer
        host = peer.where.get("host")
        self._switchboard.plug(worker, peer.connection, None if host == socket.gethostname() else host)
        self._events.append(Joined(worker, {key: value for key, value in peer.where.items() if key != "worker"}))
        self._publication.joined(worker, peer.pair)
        for slot, order in self._early.pop(worker, ()):
            self._send_grant(peer, slot, order)
        self._switchboard.restart_clock(worker)

    def _take(self, peer: _Peer, message: bytes) -> None:
        kind, describe = message[:1], self._switchboard.describe
        if kind == messages.HAVE:
            self._publication.arrived(peer.worker)
            return
        try:
            if kind == messages.FULL:
                said: Any = messages.unpack_full(message)
            else:
                said = RemoteFailure.from_json(message[1:]).rebuild(describe(peer.worker))
        except Exception as error:
            # Whatever it says, the others' run goes on.
            reason = f"is gone: it sent what is no message of collectx ({error!r})"
            self._depart(peer.worker, WorkerDied(f"{describe(peer.worker)} {reason}"))
            return
        if isinstance(said, Exception):
            self._depart(peer.worker, said)
        else:
            self._tails.append((peer, *said))
            # It was in time, also where the trainer did not listen for long and the last bytes are still to come.
            self._switchboard.restart_clock(peer.worker)

    def _finish(self) -> None:
        """Delivers the slots of which all is here, those of one worker in the order in which it sent them."""
        tails, self._tails = self._tails, []
        incomplete: set[int] = set()
        for peer, slot, tally in tails:
            if self._peers.get(peer.worker) is not peer or slot not in peer.incoming:
                continue  # it is gone
            incoming = peer.incoming[slot]
            if peer.worker in incomplete or not incoming.done():
                incomplete.add(peer.worker)
                self._tails.append((peer, slot, tally))
                continue
            try:
                self._memory[peer.worker, slot] = incoming.wait()
            except RuntimeError as error:
                if not self._switchboard.will_tell(peer.worker):
                    self._depart(peer.worker, WorkerDied(f"{self._switchboard.describe(peer.worker)}: {error}"))
                continue
            del peer.incoming[slot]
            self._switchboard.delivered(peer.worker)
            self._events.append(Arrival(peer.worker, slot, tally))

    def _depart(self, worker: int, error: Exception) -> None:
        if worker in self._pairing and isinstance(error, WorkerTimeout):
            error.add_note(
                f"Worker {worker} on {self._pairing[worker]} has reached the trainer's port {self.meeting.port}, but "
                f"the connection of {self._terms.backend} between the two, whose port the system chooses, could not be "
                "made: a firewall between them lets the one port through and not the other. It must let all TCP ports "
                "through, or choose another network with backend.interface."
            )
        self._switchboard.forget(worker)
        self._gone.add(worker)
        self._early.pop(worker, None)
        with self._lock:
            self._expected.pop(worker, None)
            self._lives.pop(worker, None)
        peer = self._peers.pop(worker, None)
        if peer is not None:
            self._publication.left(worker)
            peer.pair.close()
            # The memory may still be written to until the pair is gone.
            for slot in peer.incoming:
                self._memory.pop((worker, slot), None)
        self._events.append(Departure(worker, error))

    def gather(self, parts: Sequence[Arrival], own: bool) -> torch.Tensor:
        memories = [self._memory[part.worker, part.slot][: self._layout.nbytes] for part in parts]
        if len(memories) > 1:
            runs = self._layout.runs(0, self.spec.rows)
            return join(self.spec, [(memory, runs) for memory in memories])
        return memories[0].clone() if own else memories[0]

    def publish(self, write: Write) -> int:
        self._hear_who_has_weights()
        return self._publication.publish(write)

    def publish_to(self, writes: Mapping[int, Write]) -> int:
        self._hear_who_has_weights()
        return self._publication.publish_to(writes)

    def _hear_who_has_weights(self) -> None:
        """Who has the version before gets the next one at once."""
        if self._peers:
            self._hear(0.0)

    def hurry(self, wanted: bool) -> None:
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
        self._switchboard.dismiss()
        self._listener.close()
        while not self._joining.empty():
            self._joining.get().turn_away()
        self._switchboard.close()
        while self._peers:
            self._peers.popitem()[1].pair.close()
        self._close_bell()

    def _close_bell(self) -> None:
        os.close(self._bell_in)
        os.close(self._bell_out)


_BELL = object()
