"""The worker's end of the transport between hosts. Runs in the worker's process; the trainer's end is
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
from collectx.transport.base import NO_RESET, BatchReport
from collectx.transport.connections import enable_keepalive, set_receive_timeout
from collectx.transport.network.handshake import Endpoint, connect
from collectx.transport.network.p2p import WORKER, Incoming, Pair, make_pair, message_buffer, set_stamp, stamp_of

# Bytes whose announcement is here and whose last are still on their way are looked at again after this time.
POLL_S = 0.0005
# Both ends are there when a pair is made: only a busy host takes long, however soon a batch is asked for.
_PAIR_S = 30.0
# How often a worker looks between two steps whether it shall stop, and whether newer weights are here.
_STOP_POLL_S = 0.005


@dataclass(frozen=True)
class LinkConfig:
    """Parameters of the transport, which the trainer sends to each worker.

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

    def make_pair(self, connection: Connection, rank: int, address: str) -> Pair:
        """This process's end of a pair by these config."""
        timeout_s = max(self.timeout_s, _PAIR_S)
        set_receive_timeout(connection, timeout_s)
        pair = make_pair(self.backend, connection, rank, address, timeout_s, self.devices, self.options)
        set_receive_timeout(connection, None)
        return pair


def join_trainer(
    endpoint: Endpoint,
    worker: int,
    hello: dict[str, Any],
    timeout_s: float,
    prepare: Callable[[dict], None] = lambda task: None,
) -> tuple[dict, LinkConfig, Connection, Pair]:
    """Connects to the trainer as the worker of an index.

    Args:
        hello: what the trainer writes down about this worker, as JSON can hold it.
        timeout_s: `collector.start_timeout_s`.
        prepare: called with the task, before the pair is made.

    Returns:
        The task, the configuration of the link, the connection, and the pair.

    Raises:
        RendezvousError: the trainer was not found, or does not want this worker.
    """
    deadline = time.monotonic() + timeout_s
    # It gives up before the trainer does, which then tells the user what this worker has met.
    limit = f"three quarters of collector.start_timeout_s={timeout_s:g}"
    connection, address = connect(endpoint, 0.75 * timeout_s, limit)
    enable_keepalive(connection, max(5.0, deadline - time.monotonic()))
    try:
        connection.send_bytes(json.dumps(hello | {"worker": worker}).encode())
        reply = json.loads(connection.recv_bytes())
        if "refused" in reply:
            raise RendezvousError(f"the trainer refused: {reply['refused']}")
        prepare(reply["task"])
        config = LinkConfig(**reply["link"])
        enable_keepalive(connection, config.timeout_s)
        return reply["task"], config, connection, config.make_pair(connection, WORKER, address)
    except BlockingIOError as error:
        raise RendezvousError(f"the trainer sent nothing for too long while worker {worker} was joining") from error
    except (EOFError, OSError) as error:
        raise RendezvousError(f"the trainer ended while worker {worker} was joining ({error})") from error


class NetworkLink:
    """The worker's end. Its slots and the weights under way are this process's own memory.

    Args:
        layout: of one slot.
        config: as the trainer has sent it.
    """

    def __init__(self, worker: int, connection: Connection, pair: Pair, layout: Layout, config: LinkConfig):
        self.worker = worker
        self._connection = connection
        self._pair = pair
        self._memory = [message_buffer(layout.nbytes) for _ in range(config.num_slots)]
        for memory in self._memory:
            set_stamp(memory, 1)
        self.slots: list[Slot] = [layout.slot(memory[: layout.nbytes]) for memory in self._memory]
        self._granted: deque[tuple[int, int, int]] = deque()
        self.reset = NO_RESET
        self._announced_version = -1
        self._is_closed = self._has_failed = False
        self._next_poll_s = 0.0
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)
        self._nbytes = config.weights_nbytes
        # One holds the newest weights until they are acted with, while the other is filled with newer ones.
        self._receives: deque[tuple[Incoming, torch.Tensor]] = deque()
        for _ in range(2):
            self._receive_weights(message_buffer(config.weights_nbytes))
        self._newest: torch.Tensor | None = None
        self._version = -1
        self._least_version = 0

    @property
    def preempted(self) -> bytes:
        """Never: nobody tells."""
        return b"\0"

    @property
    def stop(self) -> NetworkLink:
        """See `__getitem__`."""
        return self

    def __getitem__(self, index: int) -> int:
        """1 once the trainer has closed, or is gone; looked for every few milliseconds."""
        now_s = time.monotonic()
        if now_s >= self._next_poll_s:
            self._next_poll_s = now_s + _STOP_POLL_S
            self._receive_messages(0.0)
            self._take_weights()
        return int(self._is_closed)

    def acquire(self) -> int | None:
        while not self._granted and not self._is_closed:
            # Bytes that are under way give no other sign of their arrival.
            self._receive_messages(POLL_S if self._announced_version > self._version else None)
            self._take_weights()
        if self._is_closed:
            return None
        slot, self.reset, self._least_version = self._granted.popleft()
        return slot

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        self._receive_messages(0.0)
        self._take_weights()
        while self._version < self._least_version and not self._is_closed:
            if self._announced_version > self._version:
                self._receives[0][0].wait()
                self._take_weights()
            else:
                self._receive_messages(None)
        if self._newest is None or self._is_closed:
            return version
        if self._version != version:
            read(self._newest[: self._nbytes])
        self._receive_weights(self._newest)
        self._newest = None
        return self._version

    def _receive_weights(self, buffer: torch.Tensor) -> None:
        self._receives.append((self._pair.receive(buffer), buffer))

    def _take_weights(self) -> None:
        """Takes weights that have arrived, and says so."""
        while self._receives and self._announced_version > self._version and self._receives[0][0].done():
            incoming, buffer = self._receives.popleft()
            incoming.wait()
            unused, self._newest = self._newest, buffer
            self._version = stamp_of(buffer) - 1
            if unused is not None:
                self._receive_weights(unused)
            self._send_message(messages.pack_have(self._version))

    def send(self, slot: int, report: BatchReport) -> None:
        try:
            self._pair.send(self._memory[slot]).wait()
        except RuntimeError:
            # Where the trainer closed, or is gone, the connection says so; anything else is a failure.
            self._receive_messages(1.0)
            if not self._is_closed:
                raise
            return
        self._send_message(messages.pack_full(slot, report))

    def fail(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._send_message(messages.FAILED + RemoteFailure.of(error).to_json())

    def on_disconnect(self, call: Callable[[], None]) -> None:
        """Calls `call` from another thread as soon as the trainer has closed, or is gone: for a worker that does not
        look at `stop` while it works. Where the system cannot tell (it needs Linux), never."""
        if not hasattr(select, "POLLRDHUP"):
            return
        poller = select.poll()
        # Also while there are messages that nobody has read yet.
        poller.register(self._connection.fileno(), select.POLLRDHUP)

        def wait() -> None:
            poller.poll()
            call()

        threading.Thread(target=wait, name="collectx-over", daemon=True).start()

    def _send_message(self, message: bytes) -> None:
        # Where the trainer is gone, the next `acquire` says so.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)

    def _receive_messages(self, at_most_s: float | None) -> None:
        """Takes in what the trainer has said; blocks until it says something, or for `at_most_s`."""
        try:
            # `Connection.poll` would make a new selector each time.
            while not self._is_closed and self._poller.poll(None if at_most_s is None else 1000.0 * at_most_s):
                kind, number, reset, least_version = messages.unpack(self._connection.recv_bytes())
                if kind == messages.GRANT:
                    self._granted.append((number, reset, least_version))
                else:
                    self._announced_version = number
                at_most_s = 0.0
        except (EOFError, OSError):
            self._is_closed = True
