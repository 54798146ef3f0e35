"""The interface of a pair: the byte channel between the trainer and one worker, of these two alone, so that the death
of a worker breaks no other channel and a replacement can join. One module for each backend implements it.

A backend's own rendezvous goes over the authenticated connection (`ConnectionStore`), so nothing else has to listen.
Used by both ends of the network transport. Does not interpret the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from collectx.config.registry import implementation

TRAINER, WORKER = 0, 1

# Spare bytes at the end of every buffer: the last eight hold the stamp, by which gloo detects a complete message.
STAMP_BYTES = 64


class Incoming(Protocol):
    """A receive in progress."""

    def done(self) -> bool:
        """Whether `wait` returns at once. Does not block."""

    def wait(self) -> torch.Tensor:
        """Blocks until all bytes have arrived; a second call returns at once.

        Returns:
            The message: the buffer, or memory of the backend, which lives as long as this tensor.

        Raises:
            RuntimeError: the connection broke, or the group's timeout passed.
        """


class Outgoing(Protocol):
    """A send in progress; its buffer must not change until `wait` has returned."""

    def wait(self) -> object: ...


class Pair(Protocol):
    """One end; the other one has the same interface. Buffers are from `message_buffer`, equally long at both ends,
    and stamped before they are sent. Messages of one direction arrive in order."""

    def send(self, buffer: torch.Tensor) -> Outgoing:
        """Sends a flat uint8 buffer. Does not block."""

    def receive(self, buffer: torch.Tensor) -> Incoming:
        """Receives the next message into `buffer`, in the background. Does not block."""

    def close(self) -> None:
        """Closes the channel; pending sends and receives fail at the other end."""


def make_pair(
    backend: str,
    connection: Connection,
    rank: int,
    address: str,
    timeout_s: float,
    devices: Sequence[str],
    options: Mapping[str, Any],
) -> Pair:
    """One end of a pair; the other one is made at the same time at the other end of `connection`.

    Args:
        backend: gloo, nccl, mpi, ucc, rpc or ray; it must be available (`collectx.transport.network.availability`).
        connection: to the other end. Nothing else may be sent over it meanwhile.
        rank: `TRAINER` or `WORKER`.
        address: this host's address on the network to the other end.
        timeout_s: after which a send or a receive counts as failed.
        devices: where the bytes lie while they travel, the trainer's end first; only for nccl.
        options: of `torch.distributed.rpc.TensorPipeRpcBackendOptions`; only for rpc.
    """
    return implementation("backend", backend)(connection, rank, address, timeout_s, devices[rank], options)


def message_buffer(nbytes: int, device: str = "cpu") -> torch.Tensor:
    """Zeroed memory for a message of so many bytes, and for its stamp."""
    return torch.zeros(-(-nbytes // STAMP_BYTES) * STAMP_BYTES + STAMP_BYTES, dtype=torch.uint8, device=device)


def set_stamp(buffer: torch.Tensor, stamp: int) -> None:
    """Marks a buffer with a number; any but 0 before it is sent."""
    _stamp_view(buffer)[0] = stamp


def stamp_of(buffer: torch.Tensor) -> int:
    """The number that a received buffer was marked with."""
    return int(_stamp_view(buffer)[0])


def _stamp_view(buffer: torch.Tensor) -> Any:
    # Over numpy in a quarter of the time.
    return buffer[-8:].view(torch.int64) if buffer.is_cuda else buffer.numpy()[-8:].view(np.int64)


class ConnectionStore(dist.Store):
    """A store for two processes, over the connection between them: `set` sends the value to the other one, until
    `finish`."""

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
            self._receive_value()
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def finish(self) -> None:
        """Blocks until the other end has finished as well; the connection is then free for other messages."""
        self._connection.send_bytes(b"")
        while self._receive_value():
            pass
        self._is_open = False

    def _receive_value(self) -> bool:
        message = self._connection.recv_bytes()
        length = int.from_bytes(message[:4], "big")
        if message:
            self._values[message[4 : 4 + length].decode()] = message[4 + length :]
        return bool(message)
