"""An inbox: another thread delivers messages, and receivers wait for them.

Used by the pair over RPC, which calls a function in the worker when weights have arrived.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from multiprocessing.connection import Connection

import torch

from collectx.transport.connections import disconnect_poll

# How often a waiting receiver checks that the connection still exists.
_CHECK_S = 0.05


class Inbox:
    """Of a worker. Its receivers fail when the connection to the trainer breaks, or after the pair's timeout."""

    def __init__(self, connection: Connection, timeout_s: float):
        self.disconnected = disconnect_poll(connection)
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        # One of the two is empty.
        self._posted: deque[InboxReceive] = deque()
        self._early: deque[torch.Tensor] = deque()

    def receive(self, buffer: torch.Tensor) -> InboxReceive:
        """Receives the next message into `buffer`."""
        posted = InboxReceive(self, buffer)
        with self._lock:
            if self._early:
                posted.fill(self._early.popleft())
            else:
                self._posted.append(posted)
        return posted

    def put(self, message: torch.Tensor) -> None:
        """Delivers the next message, from any thread. If its buffer was posted, the message is copied before this
        returns."""
        with self._lock:
            if self._posted:
                self._posted.popleft().fill(message)
            else:
                self._early.append(message)


class Sent:
    """A send whose message needs no more time (`collectx.transport.network.p2p.Outgoing`)."""

    def wait(self) -> None: ...


class InboxReceive:
    """A receive in progress (`collectx.transport.network.p2p.Incoming`)."""

    def __init__(self, inbox: Inbox, buffer: torch.Tensor):
        self._inbox = inbox
        self._buffer = buffer
        self._has_arrived = threading.Event()

    def fill(self, message: torch.Tensor) -> None:
        """Copies the message into the buffer."""
        self._buffer.copy_(message)
        self._has_arrived.set()

    def done(self) -> bool:
        return self._has_arrived.is_set()

    def wait(self) -> torch.Tensor:
        deadline_s = time.monotonic() + self._inbox.timeout_s
        while not self._has_arrived.wait(_CHECK_S):
            if self._inbox.disconnected.poll(0):
                raise RuntimeError("the connection broke while a message was awaited")
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"a message was awaited for {self._inbox.timeout_s:g} s (collector.worker_timeout_s)"
                )
        return self._buffer
