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
import select
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from collectx.batch import Layout, Slot
from collectx.errors import RemoteFailure, RendezvousError, WorkerDied, WorkerTimeout
from collectx.transport import wire
from collectx.transport.base import GO_ON, Arrival, Departure, Joined, SlabSpec, Tally
from collectx.transport.pair import (
    STAMP_BYTES,
    TRAINER,
    WORKER,
    Incoming,
    Outgoing,
    Pair,
    make_pair,
    set_stamp,
    stamp_of,
)
from collectx.transport.rendezvous import Listener, Meeting, connect, first_words, keep_alive
from collectx.transport.slab import join
from collectx.transport.switchboard import Handle, Switchboard

# A slot whose tally is here and whose last bytes are still on their way is looked at again after this time.
_TAIL_S = 0.0005
# Both ends are there when a pair is made: only a busy host takes long, however soon a batch is asked for.
_PAIR_S = 30.0
# How often a worker looks between two steps whether it shall stop, and whether newer weights are here.
_LOOK_S = 0.005
# Weights are sent to so many workers at a time, and to more while they are no more bytes than these together.
_LEAST_TRANSFERS = 4
_TRANSFER_BYTES = 2**28


@dataclass(frozen=True)
class Terms:
    """What a worker is told about the transport.

    Attributes:
        rows, steps, num_slots, weights_nbytes: see `SlabSpec`.
        timeout_s: a connection over a cut cable breaks within about this time; so long, and not less than `_PAIR_S`,
            may making the pair, a send and a receive take.
        backend, devices, options: see `make_pair`.
    """

    rows: int
    steps: int
    num_slots: int
    weights_nbytes: int
    timeout_s: float
    backend: str = "gloo"
    devices: Sequence[str] = ("cpu", "cpu")
    options: Mapping[str, Any] = field(default_factory=dict)

    def pair(self, connection: Connection, rank: int, address: str) -> Pair:
        """This process's end of a pair by these terms."""
        timeout_s = max(self.timeout_s, _PAIR_S)
        return make_pair(self.backend, connection, rank, address, timeout_s, self.devices, self.options)


@dataclass
class _Peer:
    """A worker that has joined."""

    worker: int
    connection: Connection
    pair: Pair
    where: dict[str, Any]
    num_grants: int = 0
    incoming: dict[int, Incoming] = field(default_factory=dict)
    # The version that is being sent, or was sent last, and what of it is still under way.
    version: int = -1
    sending: tuple[Outgoing, _Weights] | None = None


@dataclass(eq=False)
class _Weights:
    """One version's bytes, stamped with the version plus one, and to how many workers they are under way."""

    buffer: torch.Tensor
    num_users: int = 0


class DistributedTransport:
    """The trainer's end.

    Args:
        spec: the slots; `joined` only says how batches are made.
        switchboard: where workers are plugged in; closed with the transport.
        addresses, port, secret: see `Listener`.
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
        # Workers that are known, and to which the pair is being made, with their addresses. Shared likewise.
        self._pairing: dict[int, str] = {}
        # Workers that are gone, until others are expected in their places.
        self._gone: set[int] = set()
        self._lock = threading.Lock()
        self._joining: queue.SimpleQueue[_Peer] = queue.SimpleQueue()
        self._bell_in, self._bell_out = os.pipe()
        switchboard.watch(self._bell_in, _BELL)
        self._peers: dict[int, _Peer] = {}
        self._memory: dict[tuple[int, int], torch.Tensor] = {}
        # Grants to workers that have not joined yet.
        self._early: dict[int, list[tuple[int, int]]] = {}
        # Slots whose tally has arrived, perhaps before their last bytes.
        self._tails: list[tuple[_Peer, int, Tally]] = []
        self._events: deque[Arrival | Departure | Joined] = deque()
        self._version = -1
        self._newest: _Weights | None = None
        self._spare: list[_Weights] = []
        # Transfers share the network card: many at a time would all end late.
        self._num_sending = 0
        self._most_sending = max(_LEAST_TRANSFERS, _TRANSFER_BYTES // max(1, spec.weights_nbytes))
        self._due: OrderedDict[int, None] = OrderedDict()
        self._closed = False
        self._listener = Listener(addresses, port, secret, self._greet, self._refused)
        self.meeting: Meeting = self._listener.meeting

    # --- in the greeting threads ---

    def _greet(self, connection: Connection, address: str) -> None:
        """Agrees with a worker that knows the secret; `receive` will take it in."""
        keep_alive(connection, self._terms.timeout_s)
        hello = first_words(connection)
        worker = hello.get("worker")
        with self._lock:
            life = self._expected.pop(worker, None) if isinstance(worker, int) else None
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
                self._expected[worker] = life
            raise RendezvousError(f"worker {worker}: {error!r}") from error
        del self._pairing[worker]
        with self._lock:
            if not self._closed:
                self._joining.put(_Peer(worker, connection, pair, hello))
                os.write(self._bell_out, b"\0")
                return
        pair.close()
        connection.close()

    def _refused(self, address: str, reason: str) -> None:
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
            self._expected[worker] = life

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
        self._switchboard.send(peer.worker, wire.pack_grant(slot, order, self._version if self.spec.joined else 0))
        # Where the pair is broken, so is the connection, and the switchboard will say so.
        with contextlib.suppress(RuntimeError):
            peer.incoming[slot] = peer.pair.receive(self._memory[place], peer.num_grants)

    def receive(self) -> Arrival | Departure | Joined:
        while not self._events:
            if not self._switchboard.is_waiting:
                raise RuntimeError("no worker was granted a slot, so there is nothing to receive")
            self._hear(_TAIL_S if self._tails else None)
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
        self._peers[worker] = peer
        host = peer.where.get("host")
        self._switchboard.plug(worker, peer.connection, None if host == socket.gethostname() else host)
        self._events.append(Joined(worker, {key: value for key, value in peer.where.items() if key != "worker"}))
        self._push(peer)
        for slot, order in self._early.pop(worker, ()):
            self._send_grant(peer, slot, order)
        self._switchboard.restart_clock(worker)

    def _take(self, peer: _Peer, message: bytes) -> None:
        kind = message[:1]
        if kind == wire.FULL:
            self._tails.append((peer, *wire.unpack_full(message)))
            # It was in time, also where the trainer did not listen for long and the last bytes are still to come.
            self._switchboard.restart_clock(peer.worker)
        elif kind == wire.HAVE:
            self._sent(peer)
        else:
            failure = RemoteFailure.from_json(message[1:])
            self._depart(peer.worker, failure.rebuild(self._switchboard.describe(peer.worker)))

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
        peer = self._peers.pop(worker, None)
        if peer is not None:
            self._due.pop(worker, None)
            if peer.sending is not None:
                # Its bytes may be read until the pair is gone: they are not used again.
                self._num_sending -= 1
                peer.sending = None
                self._push_due()
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

    def publish(self, write: Callable[[torch.Tensor], None]) -> int:
        # Who has the version before gets this one at once.
        if self._peers:
            self._hear(0.0)
        weights = self._spare.pop() if self._spare else _Weights(_weights_buffer(self.spec.weights_nbytes))
        write(weights.buffer[: self.spec.weights_nbytes])
        before, self._newest = self._newest, weights
        self._version += 1
        set_stamp(weights.buffer, self._version + 1)
        if before is not None and not before.num_users:
            self._spare.append(before)
        for peer in self._peers.values():
            self._push(peer)
        return self._version

    def _push(self, peer: _Peer) -> None:
        """Sends the newest weights, unless they were sent or others are under way; later, where enough others are."""
        if peer.sending is not None or peer.version == self._version or self._newest is None:
            return
        if self._num_sending >= self._most_sending:
            self._due[peer.worker] = None
            return
        try:
            peer.sending = peer.pair.send(self._newest.buffer), self._newest
        except RuntimeError:
            return  # the connection is broken as well
        self._num_sending += 1
        self._newest.num_users += 1
        peer.version = self._version
        self._switchboard.send(peer.worker, wire.pack_weights(self._version))

    def _push_due(self) -> None:
        while self._due and self._num_sending < self._most_sending:
            self._push(self._peers[self._due.popitem(last=False)[0]])

    def _sent(self, peer: _Peer) -> None:
        """The worker has what it was sent."""
        assert peer.sending is not None
        work, weights = peer.sending
        peer.sending = None
        self._num_sending -= 1
        with contextlib.suppress(RuntimeError):
            work.wait()
        weights.num_users -= 1
        if not weights.num_users and weights is not self._newest:
            self._spare.append(weights)
        self._push_due()
        self._push(peer)

    def hurry(self, wanted: bool) -> None:
        pass

    def interrupt(self) -> None:
        for peer in list(self._peers.values()):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(peer.connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._listener.close()
        while not self._joining.empty():
            peer = self._joining.get()
            peer.connection.close()
            peer.pair.close()
        self._switchboard.close()
        while self._peers:
            self._peers.popitem()[1].pair.close()
        os.close(self._bell_in)
        os.close(self._bell_out)


_BELL = object()


def _weights_buffer(nbytes: int) -> torch.Tensor:
    """Memory for weights and their stamp, which has to be aligned."""
    return torch.empty(-(-nbytes // STAMP_BYTES) * STAMP_BYTES + STAMP_BYTES, dtype=torch.uint8)


def join_trainer(
    meeting: Meeting, worker: int, hello: dict[str, Any], timeout_s: float
) -> tuple[dict, Connection, Pair]:
    """Connects to the trainer as the worker of an index.

    Args:
        hello: what the trainer writes down about this worker, as JSON can hold it.
        timeout_s: `collector.start_timeout_s`.

    Returns:
        What the trainer tells (`task` and `terms`), the connection, and the pair.

    Raises:
        RendezvousError: the trainer was not found, or does not want this worker.
    """
    deadline = time.monotonic() + timeout_s
    # It gives up before the trainer does, which then tells the user what this worker has met.
    limit = f"three quarters of collector.start_timeout_s={timeout_s:g}"
    connection, address = connect(meeting, 0.75 * timeout_s, limit)
    keep_alive(connection, max(5.0, deadline - time.monotonic()))
    try:
        connection.send_bytes(json.dumps(hello | {"worker": worker}).encode())
        told = json.loads(connection.recv_bytes())
        if "refused" in told:
            raise RendezvousError(f"the trainer refused: {told['refused']}")
        terms = Terms(**told["terms"])
        keep_alive(connection, terms.timeout_s)
        return told, connection, terms.pair(connection, WORKER, address)
    except (EOFError, OSError) as error:
        raise RendezvousError(f"the trainer ended while worker {worker} was joining ({error})") from error


class DistributedLink:
    """The worker's end. Its slots and the weights under way are this process's own memory.

    Args:
        layout: of one slot.
        terms: what the trainer has told.
    """

    def __init__(self, worker: int, connection: Connection, pair: Pair, layout: Layout, terms: Terms):
        self.worker = worker
        self._connection = connection
        self._pair = pair
        self._memory = [torch.zeros(layout.nbytes + STAMP_BYTES, dtype=torch.uint8) for _ in range(terms.num_slots)]
        self.slots: list[Slot] = [layout.slot(memory[: layout.nbytes]) for memory in self._memory]
        self._granted: deque[tuple[int, int, int]] = deque()
        self.order = GO_ON
        self._announced = -1
        self._num_sent = 0
        self._is_over = False
        self._next_look_s = 0.0
        self._line = select.poll()
        self._line.register(connection.fileno(), select.POLLIN)
        self._nbytes = terms.weights_nbytes
        # One holds the newest weights until they are acted with, while the other is filled with newer ones.
        self._receives: deque[tuple[Incoming, torch.Tensor]] = deque()
        for _ in range(2):
            self._receive_weights(_weights_buffer(terms.weights_nbytes))
        self._newest: torch.Tensor | None = None
        self._version = -1
        self._least_version = 0

    @property
    def hurried(self) -> bytes:
        """Never: nobody tells."""
        return b"\0"

    @property
    def stop(self) -> DistributedLink:
        """See `__getitem__`."""
        return self

    def __getitem__(self, index: int) -> int:
        """1 once the trainer has closed, or is gone; looked for every few milliseconds."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._hear(0.0)
            self._look_for_weights()
        return int(self._is_over)

    def acquire(self) -> int | None:
        while not self._granted and not self._is_over:
            # Bytes that are under way give no other sign of their arrival.
            self._hear(_TAIL_S if self._announced > self._version else None)
            self._look_for_weights()
        if self._is_over:
            return None
        slot, self.order, self._least_version = self._granted.popleft()
        return slot

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        self._hear(0.0)
        self._look_for_weights()
        while self._version < self._least_version and not self._is_over:
            if self._announced > self._version:
                self._receives[0][0].wait()
                self._look_for_weights()
            else:
                self._hear(None)
        if self._newest is None or self._is_over:
            return version
        read(self._newest[: self._nbytes])
        self._receive_weights(self._newest)
        self._newest = None
        return self._version

    def _receive_weights(self, buffer: torch.Tensor) -> None:
        self._receives.append((self._pair.receive(buffer), buffer))

    def _look_for_weights(self) -> None:
        """Takes weights that have arrived, and says so."""
        while self._receives and self._announced > self._version and self._receives[0][0].done():
            incoming, buffer = self._receives.popleft()
            incoming.wait()
            overtaken, self._newest = self._newest, buffer
            self._version = stamp_of(buffer) - 1
            if overtaken is not None:
                self._receive_weights(overtaken)
            self._say(wire.pack_have(self._version))

    def send(self, slot: int, tally: Tally) -> None:
        self._num_sent += 1
        set_stamp(self._memory[slot], self._num_sent)
        try:
            self._pair.send(self._memory[slot]).wait()
        except RuntimeError:
            # Where the trainer closed, or is gone, the connection says so; anything else is a failure.
            self._hear(1.0)
            if not self._is_over:
                raise
            return
        self._say(wire.pack_full(slot, tally))

    def fail(self, error: BaseException) -> None:
        self._say(wire.FAILED + RemoteFailure.of(error).to_json())

    def when_over(self, call: Callable[[], None]) -> None:
        """Calls `call` from another thread as soon as the trainer has closed, or is gone: for a worker that does not
        look at `stop` while it works. Where the system cannot tell (it needs Linux), never."""
        if not hasattr(select, "POLLRDHUP"):
            return
        line = select.poll()
        # Also while there are messages that nobody has read yet.
        line.register(self._connection.fileno(), select.POLLRDHUP)

        def wait() -> None:
            line.poll()
            call()

        threading.Thread(target=wait, name="collectx-over", daemon=True).start()

    def _say(self, message: bytes) -> None:
        # Where the trainer is gone, the next `acquire` says so.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)

    def _hear(self, at_most_s: float | None) -> None:
        """Takes in what the trainer has said; blocks until it says something, or for `at_most_s`."""
        try:
            # `Connection.poll` would make a new selector each time.
            while not self._is_over and self._line.poll(None if at_most_s is None else 1000.0 * at_most_s):
                kind, number, order, least_version = wire.unpack(self._connection.recv_bytes())
                if kind == wire.GRANT:
                    self._granted.append((number, order, least_version))
                else:
                    self._announced = number
                at_most_s = 0.0
        except (EOFError, OSError):
            self._is_over = True
