"""Messages that another thread brings, of which one may overtake another: by number to the buffers that wait for them.

Of the pairs whose library calls a function where a message has come.
"""

from __future__ import annotations

import select
import threading
import time
from multiprocessing.connection import Connection

import torch

# How often who waits for a message looks whether the connection is still there.
_LOOK_S = 0.05


class ReorderBuffer:
    """Numbers count from 0, in the order in which buffers are posted.

    Args:
        connection: to the sender; when it breaks, nothing more is awaited.
        timeout_s: how long a message may be awaited.
    """

    def __init__(self, connection: Connection, timeout_s: float):
        self._broken = select.poll()
        # Also after messages that nobody has read yet.
        self._broken.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._posted: dict[int, PendingReceive] = {}
        self._early: dict[int, torch.Tensor] = {}
        self._num_posted = 0

    def post(self, buffer: torch.Tensor) -> PendingReceive:
        """Lets the next message be copied into `buffer`."""
        posted = PendingReceive(self, buffer)
        with self._changed:
            number, self._num_posted = self._num_posted, self._num_posted + 1
            if number in self._early:
                posted.fill(self._early.pop(number))
            else:
                self._posted[number] = posted
        return posted

    def put(self, number: int, message: torch.Tensor) -> None:
        """Brings a message; from any thread. It is copied before this returns, where a buffer waits for it."""
        with self._changed:
            posted = self._posted.pop(number, None)
            if posted is None:
                self._early[number] = message
                return
            posted.fill(message)
            self._changed.notify_all()

    def wait(self, posted: PendingReceive) -> None:
        """Blocks until a message is there. Raises RuntimeError: the connection broke, or the timeout passed."""
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            while not posted.done():
                self._changed.wait(_LOOK_S)
                if not posted.done() and self._broken.poll(0):
                    raise RuntimeError("the connection broke while a message was awaited")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"a message was awaited for {self._timeout_s:g} s (collector.worker_timeout_s)")


class PendingReceive:
    """A buffer that awaits its message (`collectx.transport.network.p2p.Incoming`)."""

    def __init__(self, reorder_buffer: ReorderBuffer, buffer: torch.Tensor):
        self._reorder_buffer = reorder_buffer
        self._buffer = buffer
        self._is_done = False

    def fill(self, message: torch.Tensor) -> None:
        """Takes the message."""
        self._buffer.copy_(message)
        self._is_done = True

    def done(self) -> bool:
        return self._is_done

    def wait(self) -> torch.Tensor:
        if not self._is_done:
            self._reorder_buffer.wait(self)
        return self._buffer
