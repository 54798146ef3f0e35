"""The worker's end of the transport between hosts, and the terms on which both ends agree. See
`collectx/transport/network/trainer.py`.
"""

from __future__ import annotations

import contextlib
import json
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from collectx.batch import Layout, Slot
from collectx.errors import RemoteFailure, RendezvousError
from collectx.transport import messages
from collectx.transport.base import GO_ON, Tally
from collectx.transport.connections import limit_receiving
from collectx.transport.network.handshake import Meeting, connect, keep_alive
from collectx.transport.network.p2p import STAMP_BYTES, WORKER, Incoming, Pair, make_pair, set_stamp, stamp_of

# Bytes whose announcement is here and whose last are still on their way are looked at again after this time.
TAIL_S = 0.0005
# Both ends are there when a pair is made: only a busy host takes long, however soon a batch is asked for.
_PAIR_S = 30.0
# How often a worker looks between two steps whether it shall stop, and whether newer weights are here.
_LOOK_S = 0.005


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
        limit_receiving(connection, timeout_s)
        pair = make_pair(self.backend, connection, rank, address, timeout_s, self.devices, self.options)
        limit_receiving(connection, None)
        return pair


def weights_buffer(nbytes: int) -> torch.Tensor:
    """Memory for weights and their stamp, which has to be aligned."""
    return torch.empty(-(-nbytes // STAMP_BYTES) * STAMP_BYTES + STAMP_BYTES, dtype=torch.uint8)


def join_trainer(
    meeting: Meeting,
    worker: int,
    hello: dict[str, Any],
    timeout_s: float,
    prepare: Callable[[dict], None] = lambda task: None,
) -> tuple[dict, Connection, Pair]:
    """Connects to the trainer as the worker of an index.

    Args:
        hello: what the trainer writes down about this worker, as JSON can hold it.
        timeout_s: `collector.start_timeout_s`.
        prepare: called with the task, before the pair is made.

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
        prepare(told["task"])
        terms = Terms(**told["terms"])
        keep_alive(connection, terms.timeout_s)
        return told, connection, terms.pair(connection, WORKER, address)
    except BlockingIOError as error:
        raise RendezvousError(f"the trainer sent nothing for too long while worker {worker} was joining") from error
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
        self._is_over = self._has_failed = False
        self._next_look_s = 0.0
        self._line = select.poll()
        self._line.register(connection.fileno(), select.POLLIN)
        self._nbytes = terms.weights_nbytes
        # One holds the newest weights until they are acted with, while the other is filled with newer ones.
        self._receives: deque[tuple[Incoming, torch.Tensor]] = deque()
        for _ in range(2):
            self._receive_weights(weights_buffer(terms.weights_nbytes))
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
            self._hear(TAIL_S if self._announced > self._version else None)
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
        if self._version != version:
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
            self._say(messages.pack_have(self._version))

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
        self._say(messages.pack_full(slot, tally))

    def fail(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._say(messages.FAILED + RemoteFailure.of(error).to_json())

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
                kind, number, order, least_version = messages.unpack(self._connection.recv_bytes())
                if kind == messages.GRANT:
                    self._granted.append((number, order, least_version))
                else:
                    self._announced = number
                at_most_s = 0.0
        except (EOFError, OSError):
            self._is_over = True
