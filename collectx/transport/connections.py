"""Additions to `multiprocessing.connection.Connection`: socket options, and a reader and a writer that never wait for
the rest of a message. So a peer that stops in the middle of one blocks nobody, and two peers can send each other long
messages at the same time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

LONGEST_WAIT_S = 86400.0
"""The longest time to pass to a function that waits. Users may set timeouts to infinity, but Python's functions count
milliseconds in 31 bits."""
# The largest values that Linux accepts for the seconds between keepalive probes, and the milliseconds until the
# connection breaks.
_MAX_KEEPALIVE_S, _MAX_USER_TIMEOUT_MS = 32767, 2**31 - 1
# The maximum number of bytes per read, for a new message and for the rest of a long one.
_FEW_BYTES, _MANY_BYTES = 2**16, 2**20
# The length before a message; if it is `_LONG`, because the message is longer than `_LONGEST`, a second length follows.
_LENGTH, _LONG_LENGTH, _LONG, _LONGEST = struct.Struct("!i"), struct.Struct("!Q"), -1, 2**31 - 1


@contextlib.contextmanager
def socket_of(connection: Connection) -> Iterator[socket.socket]:
    """Yields the socket of a connection, to set its options."""
    with socket.socket(fileno=os.dup(connection.fileno())) as view:
        # After `socket.setdefaulttimeout`, making this object has set the connection to non-blocking.
        view.settimeout(None)
        yield view


def shut_down(connection: Connection) -> None:
    """Ends a connection for both ends, and closes this end. After `close` alone, the other end would not notice while a
    fork of this process has this end open."""
    with contextlib.suppress(OSError), socket_of(connection) as line:
        line.shutdown(socket.SHUT_RDWR)
    connection.close()


def set_receive_timeout(connection: Connection, seconds: float | None) -> None:
    """Makes `recv_bytes` raise `BlockingIOError` if nothing arrives for `seconds`; None: no limit."""
    # A C struct timeval; with zero, the kernel waits without limit.
    timeout_s = 0 if seconds is None else max(1, int(min(seconds, LONGEST_WAIT_S)))
    with socket_of(connection) as view:
        view.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", timeout_s, 0))


def enable_keepalive(connection: Connection, notice_s: float) -> None:
    """Makes a connection whose cable is cut break within about `notice_s` seconds, two days at most, even if nothing is
    sent."""
    with socket_of(connection) as peer:
        interval = int(min(max(1.0, notice_s / 5), _MAX_KEEPALIVE_S))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", interval),
            ("TCP_KEEPINTVL", interval),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", int(min(1000 * notice_s, _MAX_USER_TIMEOUT_MS))),
        ):
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def disconnect_poll(connection: Connection) -> select.poll:
    """Returns a poll object that reports when the other end has closed the connection or is gone. It does not report
    messages."""
    poller = select.poll()
    poller.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))
    return poller


class MessageReader:
    """Reads bytes from a connection, and returns complete messages. Nothing else may read from the connection."""

    def __init__(self, connection: Connection):
        self._descriptor = connection.fileno()
        self._bytes = bytearray()

    def read(self) -> list[bytes]:
        """Reads once, and returns the messages that are complete now, perhaps none. Blocks only if nothing is readable
        and the connection has no `MessageWriter`. Raises `EOFError` if the other end is closed, or `OSError` if the
        connection broke, or the bytes are not a message."""
        try:
            more = os.read(self._descriptor, _MANY_BYTES if self._bytes else _FEW_BYTES)
        except BlockingIOError:
            return []
        if not more:
            raise EOFError
        self._bytes += more
        messages = []
        while (message := self._next_message()) is not None:
            messages.append(message)
        return messages

    def _next_message(self) -> bytes | None:
        """Removes and returns the first message; None while it is incomplete."""
        buffer, start = self._bytes, _LENGTH.size
        if len(buffer) < start:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if length == _LONG:
            start += _LONG_LENGTH.size
            if len(buffer) < start:
                return None
            (length,) = _LONG_LENGTH.unpack_from(buffer, _LENGTH.size)
        if length < 0:
            raise OSError(f"it sent a message of length {length}")
        if len(buffer) < start + length:
            return None
        message = bytes(memoryview(buffer)[start : start + length])
        del buffer[: start + length]
        return message


class MessageWriter:
    """Writes messages to a connection without waiting: keeps the bytes for which there is no room yet. Nothing else may
    write to the connection, which becomes non-blocking."""

    def __init__(self, connection: Connection):
        self._descriptor = connection.fileno()
        os.set_blocking(self._descriptor, False)
        self._bytes = bytearray()

    def write(self, message: bytes) -> bool:
        """Writes a message after the earlier ones; see `flush`."""
        is_long = len(message) > _LONGEST
        head = _LENGTH.pack(_LONG) + _LONG_LENGTH.pack(len(message)) if is_long else _LENGTH.pack(len(message))
        message = head + message
        with contextlib.suppress(BlockingIOError):
            if not self._bytes:
                message = message[os.write(self._descriptor, message) :]
        self._bytes += message
        return bool(self._bytes) and self.flush()

    def flush(self) -> bool:
        """Writes what there is room for; returns whether bytes are left. Raises `OSError` if the connection broke."""
        while self._bytes:
            try:
                del self._bytes[: os.write(self._descriptor, self._bytes)]
            except BlockingIOError:
                return True
        return False
