"""What `multiprocessing.connection.Connection` lacks: a receiving end that never waits for the rest of a message, as a
sender that is stopped in the midst of one must not stop its receiver as well; and the options of its socket.

Used by the transports between processes. Must not know what messages mean.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

_LONGEST_S = 86400.0
# Linux takes no more: seconds between two questions whether the other host is there, milliseconds until it is not.
_MOST_KEEPALIVE_S, _MOST_USER_TIMEOUT_MS = 32767, 2**31 - 1
# How much is read at once: the next messages, or more of a long one.
_FEW_BYTES, _MANY_BYTES = 2**16, 2**20
# The length before a message, and, where that is `_LONG`, before a longer one.
_LENGTH, _LONG_LENGTH, _LONG = struct.Struct("!i"), struct.Struct("!Q"), -1


@contextlib.contextmanager
def socket_of(connection: Connection) -> Iterator[socket.socket]:
    """The socket below a connection, for its options."""
    with socket.socket(fileno=os.dup(connection.fileno())) as view:
        # Under `socket.setdefaulttimeout` the new object has made it non-blocking, for the connection as well.
        view.settimeout(None)
        yield view


def set_send_timeout(connection: Connection, seconds: float) -> None:
    """Has a message that is longer than the socket's buffer fail, instead of block, where nobody reads it."""
    _set_timeout(connection, socket.SO_SNDTIMEO, seconds)


def set_receive_timeout(connection: Connection, seconds: float | None) -> None:
    """Has `recv_bytes` fail with `BlockingIOError` where nothing comes for so long; None: it waits for ever."""
    _set_timeout(connection, socket.SO_RCVTIMEO, seconds)


def _set_timeout(connection: Connection, option: int, seconds: float | None) -> None:
    # A C struct timeval; of no time at all, the kernel waits for ever.
    whole_s = 0 if seconds is None else max(1, int(min(seconds, _LONGEST_S)))
    with socket_of(connection) as view:
        view.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole_s, 0))


def enable_keepalive(connection: Connection, notice_s: float) -> None:
    """Lets the operating system ask the other host whether it is still there, so that a connection over a pulled cable
    breaks within about `notice_s` seconds, or within two days where that is longer, without a message of ours."""
    with socket_of(connection) as peer:
        interval = int(min(max(1.0, notice_s / 5), _MOST_KEEPALIVE_S))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", interval),
            ("TCP_KEEPINTVL", interval),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", int(min(1000 * notice_s, _MOST_USER_TIMEOUT_MS))),
        ):
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class MessageReader:
    """Collects received bytes and returns whole messages. Nothing else may read from the connection."""

    def __init__(self, connection: Connection):
        self._descriptor = connection.fileno()
        self._bytes = bytearray()

    def read(self) -> list[bytes]:
        """Reads once; the messages that are whole now. Does not block where the connection is readable.

        Raises:
            EOFError: the other end is closed.
            OSError: the connection broke, or what comes is no message.
        """
        more = os.read(self._descriptor, _MANY_BYTES if self._bytes else _FEW_BYTES)
        if not more:
            raise EOFError
        self._bytes += more
        messages = []
        while (message := self._next_message()) is not None:
            messages.append(message)
        return messages

    def _next_message(self) -> bytes | None:
        """The first message, if it is whole."""
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
