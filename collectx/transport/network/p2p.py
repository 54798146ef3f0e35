"""The interface of a pair, the byte channel between the trainer and one worker. Each worker uses its own, so that its
death breaks no other channel, and a replacement can join.

Each backend is a module (`collectx.config.registry`) with two functions (or classes):

    make(config, connection, rank, address) -> Pair     one end of a pair, see `PairConfig.make_pair`
    why_not() -> str | None     why the backend cannot work in this process, as a `Conflict.rule`; called only if its
                                libraries are installed

The two ends of a backend find each other over the authenticated connection, on which nothing else is sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch

from collectx.batch import aligned
from collectx.config.registry import implementation
from collectx.memory import batch_memory
from collectx.transport.connections import LONGEST_WAIT_S, set_receive_timeout

TRAINER, WORKER = 0, 1

# Spare bytes at the end of every buffer. The last eight contain the stamp, by which gloo detects a complete message.
STAMP_BYTES = 64
# Seconds between two polls for a message that was announced and has not arrived completely.
POLL_S = 0.0005
# The minimum timeout of a pair. Both ends exist when it is made, but a busy host may take long.
_PAIR_S = 30.0


class PendingReceive(Protocol):
    """A receive in progress."""

    def done(self) -> bool:
        """Whether `wait` returns at once. Does not block."""

    def wait(self) -> torch.Tensor:
        """Blocks until all bytes have arrived; a second call returns at once. Returns the message, flat uint8: the
        buffer, or memory of the backend, which lives as long as this tensor. Raises `RuntimeError` if the connection
        broke, or the pair's timeout passed."""


class PendingSend(Protocol):
    """A send in progress. Its buffer must not change until `wait` has returned."""

    def wait(self) -> object: ...


class Pair(Protocol):
    """One end of a pair; both ends have this interface. Buffers come from `message_buffer`, have the same size at both
    ends, and are stamped before they are sent. Messages of one direction arrive in order, so receives complete in the
    order in which they were posted; call `done` and `wait` only for the first incomplete one. The trainer sends a
    message only after the worker has acknowledged the previous one."""

    def send(self, buffer: torch.Tensor) -> PendingSend:
        """Sends a flat uint8 buffer. Does not block."""

    def receive(self, buffer: torch.Tensor) -> PendingReceive:
        """Begins to receive the next message into `buffer`. Does not block."""

    def close(self) -> None:
        """Closes the channel; pending sends and receives fail at the other end."""


@dataclass(frozen=True)
class PairConfig:
    """The parameters of both ends of a pair, which the trainer sends to the worker.

    Attributes:
        timeout_s: a connection over a cut cable breaks within about this time.
        backend: the name of a network backend, which must be available (`collectx.config.registry.why_not`).
        devices: the devices of the bytes to send, at the trainer's end and at the worker's; only for nccl.
        options: arguments of `torch.distributed.rpc.TensorPipeRpcBackendOptions`; only for rpc.
    """

    timeout_s: float
    backend: str = "gloo"
    devices: Sequence[str] = ("cpu", "cpu")
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pair_timeout_s(self) -> float:
        """Maximum seconds for making the pair, and for each send and receive; finite."""
        return min(max(self.timeout_s, _PAIR_S), LONGEST_WAIT_S)

    def make_pair(self, connection: Connection, rank: int, address: str) -> Pair:
        """Makes this process's end of the pair, while the process at the other end of `connection` makes its own.
        Blocks. `rank` is `TRAINER` or `WORKER`. `address` is this host's address on the network of the connection."""
        set_receive_timeout(connection, self.pair_timeout_s)
        pair = implementation("backend", self.backend).make(self, connection, rank, address)
        set_receive_timeout(connection, None)
        return pair


def message_buffer(nbytes: int, device: str = "cpu") -> torch.Tensor:
    """Returns zeroed memory for a message of `nbytes` bytes and its stamp."""
    return torch.zeros(_with_stamp(nbytes), dtype=torch.uint8, device=device)


def received_message(nbytes: int, device: str) -> torch.Tensor:
    """Returns memory of undefined content for a message that is received, and its stamp."""
    return batch_memory.empty(_with_stamp(nbytes), torch.device(device))


def _with_stamp(nbytes: int) -> int:
    return aligned(nbytes, STAMP_BYTES) + STAMP_BYTES


def set_stamp(buffer: torch.Tensor, stamp: int) -> None:
    """Writes a number into the stamp of a buffer; not 0 if the buffer is to be sent."""
    stamp_view(buffer)[0] = stamp


def stamp_of(buffer: torch.Tensor) -> int:
    """Returns the number in the stamp of a received buffer."""
    return int(stamp_view(buffer)[0])


def stamp_view(buffer: torch.Tensor) -> Any:
    """Returns a view of a buffer's stamp, `[1]` int64: a tensor on a GPU, otherwise a NumPy array."""
    # By NumPy, this takes a quarter of the time.
    return buffer[-8:].view(torch.int64) if buffer.is_cuda else buffer.numpy()[-8:].view(np.int64)
