"""The way of the bytes between the trainer and one worker: a torch.distributed process group of these two alone, calls
over torch RPC, or Ray's object store. One death never takes the others along, and a replacement can come.

The group's own rendezvous goes over the authenticated connection, so nothing else has to listen (`ConnectionStore`).
Here are what every pair promises and the one over gloo; the others are in ``<backend>.py``. Must not know what the
bytes are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from collectx.transport.network.listener_filter import ListenerFilter, filter_listeners

TRAINER, WORKER = 0, 1

# Spare bytes at the end of every stamped buffer: the last eight hold the stamp.
STAMP_BYTES = 64


class Incoming(Protocol):
    """A receive that is under way."""

    def done(self) -> bool:
        """Whether all bytes are there. Does not block."""

    def wait(self) -> torch.Tensor:
        """Blocks until all bytes are there. Again, it returns at once.

        Returns:
            The message: the buffer, or memory of the backend's own, for as long as it is referred to.

        Raises:
            RuntimeError: the connection broke, or the group's timeout passed.
        """


class Outgoing(Protocol):
    """A send that is under way; the buffer must stay as it is until it has been waited for."""

    def wait(self) -> object: ...


class Pair(Protocol):
    """Both ends alike. Messages of one direction arrive in order."""

    def send(self, buffer: torch.Tensor) -> Outgoing:
        """Sends a flat uint8 buffer. Does not block."""

    def receive(self, buffer: torch.Tensor, stamp: int | None = None) -> Incoming:
        """Lets the next message flow into `buffer`, in the background. Does not block.

        Args:
            stamp: what the sender has stamped this buffer with; None where that is any number but 0 (see `stamp_of`).
        """

    def close(self) -> None:
        """Breaks the connection off; pending sends and receives fail at the other end."""


def make_pair(
    backend: str,
    connection: Connection,
    rank: int,
    address: str,
    timeout_s: float,
    devices: Sequence[str],
    options: Mapping[str, Any],
) -> Pair:
    """One end of a pair; the other is made at the same time at the other end of `connection`.

    Args:
        backend: gloo, nccl, mpi, ucc, rpc or ray, as `collectx.transport.network.availability` finds that it can work.
        connection, rank, address, timeout_s: see `GlooPair`.
        devices: where the bytes lie on their way, the trainer's end first; only nccl looks at it.
        options: of `RpcPair`; only rpc looks at it.
    """
    if backend == "gloo":
        return GlooPair(connection, rank, address, timeout_s)
    if backend == "rpc":
        from collectx.transport.network.rpc import RpcPair

        return RpcPair(connection, rank, address, timeout_s, options)
    return import_module(f"collectx.transport.network.{backend}").make(connection, rank, timeout_s, devices[rank])


def set_stamp(buffer: torch.Tensor, stamp: int) -> None:
    """Marks a buffer about to be sent with the number that its receiver expects."""
    _place(buffer)[0] = stamp


def stamp_of(buffer: torch.Tensor) -> int:
    """The number that a received buffer was marked with."""
    return int(_place(buffer)[0])


def _place(buffer: torch.Tensor) -> Any:
    # Over numpy in a quarter of the time.
    return buffer[-8:].view(torch.int64) if buffer.is_cuda else buffer.numpy()[-8:].view(np.int64)


class GlooPair:
    """Over TCP, by gloo.

    Args:
        connection: to the other end, which makes its half at the same time. Nothing else may be sent meanwhile.
        rank: `TRAINER` or `WORKER`.
        address: this host's address on the way to the other.
        timeout_s: after which a send or a receive counts as failed.
    """

    def __init__(self, connection: Connection, rank: int, address: str, timeout_s: float):
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        with _making:
            device, door = _device(address)
        options._devices = [device]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        exchange = ConnectionStore(connection)
        with door.opened():
            self._group: Any = gloo(exchange, rank, 2, options)
            exchange.finish()
        self._peer = 1 - rank

    def send(self, buffer: torch.Tensor) -> Outgoing:
        return self._group.send([buffer], self._peer, 0)

    def receive(self, buffer: torch.Tensor, stamp: int | None = None) -> _GlooIncoming:
        # What the buffer was stamped with before must not look like this message's.
        set_stamp(buffer, 0)
        return _GlooIncoming(self._group.recv([buffer], self._peer, 0), buffer, stamp)

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group = None


_making = threading.Lock()


@cache
def _device(address: str) -> tuple[Any, ListenerFilter]:
    """The sockets of this process on that address, served by one thread, which wakes a hundred times a second whether
    or not anything happens: with one for each pair, a thousand idle workers would cost the trainer a core."""
    # gloo's sockets are inheritable, Python's are not.
    return filter_listeners(lambda: dist.ProcessGroupGloo.create_device(hostname=address), os.get_inheritable)


class _GlooIncoming:
    """gloo does not tell whether a receive is complete without blocking. It writes the bytes of a message in order,
    straight into the buffer: when the stamp at its end is there, so is the rest, and `wait` returns at once."""

    def __init__(self, work: dist.Work, buffer: torch.Tensor, stamp: int | None):
        self._work = work
        self._buffer = buffer
        self._stamp = stamp
        self._place = _place(buffer)
        self._is_over = False

    def done(self) -> bool:
        stamp = int(self._place[0])
        return stamp != 0 if self._stamp is None else stamp == self._stamp

    def wait(self) -> torch.Tensor:
        # gloo would wait for another message the second time.
        if not self._is_over:
            self._work.wait()
            self._is_over = True
        return self._buffer


class ConnectionStore(dist.Store):
    """A store of two, over the connection between them: what one sets is sent to the other, until `finish`."""

    def __init__(self, connection: Connection):
        super().__init__()
        self._connection = connection
        self._values: dict[str, bytes] = {}
        self._is_open = True

    def set(self, key: str, value: Any) -> None:
        self._values[key] = bytes(value)
        if self._is_open:
            name = key.encode()
            self._connection.send_bytes(len(name).to_bytes(4, "big") + name + bytes(value))

    def get(self, key: str) -> bytes:
        while key not in self._values:
            if not self._is_open:
                raise RuntimeError(f"the pair was made without {key}")
            self._hear()
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def finish(self) -> None:
        """Returns when the other end has finished as well: afterwards the connection is free for other messages."""
        self._connection.send_bytes(b"")
        while self._hear():
            pass
        self._is_open = False

    def _hear(self) -> bool:
        message = self._connection.recv_bytes()
        length = int.from_bytes(message[:4], "big")
        if message:
            self._values[message[4 : 4 + length].decode()] = message[4 + length :]
        return bool(message)
