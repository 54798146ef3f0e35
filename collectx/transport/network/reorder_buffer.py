"""A reorder buffer: another thread delivers numbered messages, possibly out of order, and receivers wait for them by
number.

Used by the pairs over RPC and Ray. Both libraries call a function when a message has arrived.
"""

from __future__ import annotations

import select
import threading
import time
from multiprocessing.connection import Connection

import torch

# How often a waiting receiver checks that the connection still exists.
_CHECK_S = 0.05


class ReorderBuffer:
    """Messages are numbered from 0, in the order in which their buffers are posted.

    Args:
        connection: to the sender; when it breaks, waiting receivers fail.
        timeout_s: how long a receiver may wait.
    """

    def __init__(self, connection: Connection, timeout_s: float):
        self._broken = select.poll()
        # Unlike POLLIN, it is not raised by unread messages.
        self._broken.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._posted: dict[int, PendingReceive] = {}
        self._early: dict[int, torch.Tensor] = {}
        self._num_posted = 0

    def post(self, buffer: torch.Tensor) -> PendingReceive:
        """Receives the next message into `buffer`."""
        posted = PendingReceive(self, buffer)
        with self._changed:
            number, self._num_posted = self._num_posted, self._num_posted + 1
            if number in self._early:
                posted.fill(self._early.pop(number))
            else:
                self._posted[number] = posted
        return posted

    def put(self, number: int, message: torch.Tensor) -> None:
        """Delivers a message, from any thread. If its buffer was posted, the message is copied before this returns."""
        with self._changed:
            posted = self._posted.pop(number, None)
            if posted is None:
                self._early[number] = message
                return
            posted.fill(message)
            self._changed.notify_all()

    def wait(self, posted: PendingReceive) -> None:
        """Blocks until a message has arrived. Raises RuntimeError: the connection broke, or the timeout passed."""
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            while not posted.done():
                self._changed.wait(_CHECK_S)
                if not posted.done() and self._broken.poll(0):
                    raise RuntimeError("the connection broke while a message was awaited")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"a message was awaited for {self._timeout_s:g} s (collector.worker_timeout_s)")


class PendingReceive:
    """A receive in progress (`collectx.transport.network.p2p.Incoming`)."""

    def __init__(self, reorder_buffer: ReorderBuffer, buffer: torch.Tensor):
        self._reorder_buffer = reorder_buffer
        self._buffer = buffer
        self._is_done = False

    def fill(self, message: torch.Tensor) -> None:
        """Copies the message into the buffer."""
        self._buffer.copy_(message)
        self._is_done = True

    def done(self) -> bool:
        return self._is_done

    def wait(self) -> torch.Tensor:
        if not self._is_done:
            self._reorder_buffer.wait(self)
        return self._buffer
