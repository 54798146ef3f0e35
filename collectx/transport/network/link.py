"""The worker's end of the network transport. The trainer's end is `collectx/transport/network/transport.py`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from collectx import progress
from collectx.batch import Slot
from collectx.errors import RemoteFailure, RendezvousError
from collectx.progress import STEPS
from collectx.transport import messages
from collectx.transport.base import Fill, Request, SlotReport, SlotSpec
from collectx.transport.connections import disconnect_poll, enable_keepalive
from collectx.transport.network.handshake import Endpoint, connect, join_limit
from collectx.transport.network.p2p import (
    POLL_S,
    WORKER,
    Pair,
    PairConfig,
    PendingReceive,
    message_buffer,
    set_stamp,
    stamp_of,
)

# Seconds between two checks, between steps, for a stop and for newer weights.
_STOP_POLL_S = 0.005
# Seconds between two progress messages to the trainer, and their maximum as a share of the worker's timeout.
_PROGRESS_S, _PROGRESS_SHARE = 1.0, 0.25


def join_trainer(
    endpoint: Endpoint,
    worker: int,
    hello: dict[str, Any],
    timeout_s: float,
    prepare: Callable[[dict], None] = lambda spec: None,
) -> tuple[dict, NetworkLink]:
    """Connects to the trainer as the worker with index `worker`, and makes the pair. Blocks until then. Returns the
    worker's spec, JSON-compatible data, and its link. Raises `RendezvousError` if the trainer cannot be reached,
    refused the worker, or ended.

    Args:
        hello: information about this worker for the event log, JSON-compatible data.
        prepare: called with the worker's spec, before the pair is made.
    """
    deadline = time.monotonic() + timeout_s
    connection, address = connect(endpoint, *join_limit(timeout_s))
    enable_keepalive(connection, max(5.0, deadline - time.monotonic()))
    try:
        connection.send_bytes(json.dumps(hello | {"worker": worker}).encode())
        reply = json.loads(connection.recv_bytes())
        if "refused" in reply:
            raise RendezvousError(f"the trainer refused this worker: {reply['refused']}")
        prepare(reply["spec"])
        connection.send_bytes(b"")  # it begins to make the pair
        config = PairConfig(**reply["pair"])
        enable_keepalive(connection, config.timeout_s)
        pair = config.make_pair(connection, WORKER, address)
        slot_spec = SlotSpec.from_json(reply["batch"])
        return reply["spec"], NetworkLink(worker, connection, pair, slot_spec, endpoint.secret, config.timeout_s)
    except BlockingIOError as error:
        raise RendezvousError(f"the trainer sent nothing for too long while worker {worker} was joining") from error
    except (EOFError, OSError) as error:
        raise RendezvousError(f"the trainer ended while worker {worker} was joining ({error})") from error


class _StopFlag:
    """See `Stop`; calls `poll` whenever it is read."""

    def __init__(self, poll: Callable[[], bool]):
        self._poll = poll

    def __getitem__(self, index: int) -> int:
        return self._poll()


class NetworkLink:
    """The worker's end. Slots and weights are in memory of this process. `stop` is nonzero once the trainer has closed
    the connection or is gone. Reading it also, every few milliseconds, handles messages, takes weights that have
    arrived, and reports progress to the trainer. `secret` is the run's secret, with which requests and replies are
    signed."""

    def __init__(
        self, worker: int, connection: Connection, pair: Pair, slot_spec: SlotSpec, secret: bytes, timeout_s: float
    ):
        self.slot_spec, layout = slot_spec, slot_spec.layout()
        self.worker = worker
        self._secret = secret
        self.connection = connection
        self._pair = pair
        self._memory = [message_buffer(layout.nbytes) for _ in range(self.slot_spec.num_slots)]
        for memory in self._memory:
            set_stamp(memory, 1)
        self.stop = _StopFlag(self._poll)
        self.slots: list[Slot] = [layout.slot(memory[: layout.nbytes]) for memory in self._memory]
        # Granted slots, each with the oldest version that it may be filled with, and requests.
        self._inbox: deque[tuple[Fill, int] | Request] = deque()
        self._announced_version = -1
        self._is_closed = self._has_stepped = False
        self._next_poll_s = self._next_progress_s = 0.0
        self._progress_every_s = min(_PROGRESS_S, _PROGRESS_SHARE * timeout_s)
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)
        self._nbytes = self.slot_spec.weights_nbytes
        self._grants_name_version = self.slot_spec.grants_name_version
        # Two buffers: one contains the newest weights until `refresh`, the other receives newer ones.
        self._receives: deque[tuple[PendingReceive, torch.Tensor]] = deque()
        for _ in range(2):
            self._receive_weights(message_buffer(self._nbytes))
        self._newest: torch.Tensor | None = None
        self._version = -1
        # The oldest version that the last grant allows.
        self._least_version = -1 if self._grants_name_version else 0

    @property
    def preempted(self) -> bytes:
        """Always false: batches over a network are not preempted."""
        return b"\0"

    def _poll(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._next_poll_s:
            if self._has_stepped:
                self._next_poll_s = now_s + _STOP_POLL_S
            elif progress.counts[STEPS]:
                # At once, because `worker_timeout_s` applies from the first step on.
                self._has_stepped, self._next_progress_s = True, 0.0
            self._receive_messages(0.0)
            self._take_weights()
            self._tell_progress(now_s)
        return self._is_closed

    def report_progress(self) -> None:
        progress.report_to(progress.counts, lambda: self._tell_progress(time.monotonic()))

    def _tell_progress(self, now_s: float) -> None:
        if now_s >= self._next_progress_s:
            self._next_progress_s = now_s + self._progress_every_s
            self._send_message(messages.pack_progress(tuple(progress.counts)))

    def acquire(self) -> Fill | Request | None:
        while not self._inbox and not self._is_closed:
            # Nothing signals that weights have arrived completely, so this polls for them.
            is_arriving = self._announced_version > self._version and not self._grants_name_version
            self._receive_messages(POLL_S if is_arriving else None)
            self._take_weights()
        if self._is_closed:
            return None
        granted = self._inbox.popleft()
        if isinstance(granted, Request):
            return granted
        self._next_progress_s = time.monotonic() + self._progress_every_s
        fill, self._least_version = granted
        return fill

    def reply(self, value: Any, error: Exception | None = None) -> None:
        failure = None if error is None else RemoteFailure.of(error).to_json().decode()
        self._send_message(messages.pack_signed(messages.REPLY, (value, failure), self._secret))

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
        """Takes the weights that have arrived, but none newer than the grant names, and acknowledges them."""
        while self._receives and self._announced_version > self._version and self._receives[0][0].done():
            if self._grants_name_version and self._version == self._least_version:
                return
            incoming, buffer = self._receives.popleft()
            incoming.wait()
            unused, self._newest = self._newest, buffer
            self._version = stamp_of(buffer) - 1
            if unused is not None:
                self._receive_weights(unused)
            self._send_message(messages.pack_version(messages.HAVE, self._version))

    def send(self, slot: int, report: SlotReport) -> None:
        try:
            self._pair.send(self._memory[slot]).wait()
        except RuntimeError:
            # Not an error if the trainer has closed or is gone: the connection is then closed too.
            self._receive_messages(1.0)
            if not self._is_closed:
                raise
            return
        self._send_message(messages.pack_full(slot, report))

    def fail(self, error: BaseException) -> None:
        self._send_message(messages.FAILED + RemoteFailure.of(error).to_json())

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` in another thread as soon as the trainer has closed or is gone, for a worker that does not
        read `stop` while it works. Returns a function that ends the thread, and blocks while `callback` runs."""
        poller = disconnect_poll(self.connection)
        readable, writable = os.pipe()
        poller.register(readable)

        def wait() -> None:
            if readable not in dict(poller.poll()):
                callback()

        thread = threading.Thread(target=wait, name="collectx-disconnect", daemon=True)
        thread.start()

        def end() -> None:
            os.close(writable)  # hangs up the pipe
            thread.join()
            os.close(readable)

        return end

    def _send_message(self, message: bytes) -> None:
        # If the trainer is gone, the next `acquire` returns None.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(message)

    def _receive_messages(self, timeout_s: float | None) -> None:
        """Handles the messages of the trainer; blocks until there is one, for at most `timeout_s` seconds."""
        try:
            # `Connection.poll` would make a new selector each time.
            while not self._is_closed and self._poller.poll(None if timeout_s is None else 1000.0 * timeout_s):
                message = self.connection.recv_bytes()
                timeout_s = 0.0
                if message[:1] == messages.REQUEST:
                    self._inbox.append(Request(*messages.unpack_signed(message, self._secret)))
                elif message[:1] == messages.GRANT:
                    self._inbox.append(messages.unpack_grant(message))
                else:
                    self._announced_version = messages.unpack_version(message)
        except (EOFError, OSError):
            self._is_closed = True
