"""What the pairs over torch.distributed process groups (gloo, NCCL, UCC) have in common."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.p2p import PendingSend


class GroupPair:
    """One end of a pair over process groups; see `collectx.transport.network.p2p.Pair`.

    Args:
        outwards, inwards: process groups of two ranks for the messages of each direction; may be the same.
        peer: the rank of the other end.
    """

    def __init__(self, outwards: Any, inwards: Any, peer: int):
        self._outwards, self._inwards, self._peer = outwards, inwards, peer

    def send(self, buffer: torch.Tensor) -> PendingSend:
        return self._outwards.send([buffer], self._peer, 0)

    def receive(self, buffer: torch.Tensor) -> GroupReceive:
        return GroupReceive(self._inwards.recv([buffer], self._peer, 0), buffer)

    def close(self) -> None:
        if self._inwards is not None:
            for group in {self._inwards, self._outwards}:
                group.abort()
            self._inwards = self._outwards = None


class GroupReceive:
    """A receive in progress; see `collectx.transport.network.p2p.PendingReceive`."""

    def __init__(self, work: dist.Work, buffer: torch.Tensor):
        self._work: dist.Work | None = work
        self._buffer = buffer

    def done(self) -> bool:
        return self._work is None or self._work.is_completed()

    def wait(self) -> torch.Tensor:
        # A second `wait` of gloo would wait for another message.
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._buffer


def connect(group: Any, rank: int, sender: int, device: torch.device | str = "cpu") -> None:
    """Connects the two ranks of a group, which the first operation does: sends a byte from one to the other."""
    byte = torch.zeros(1, dtype=torch.uint8, device=device)
    (group.send if rank == sender else group.recv)([byte], 1 - rank, 0).wait()


class ConnectionStore(dist.Store):
    """A torch.distributed store for two processes, over the connection between them. `set` sends the value to the other
    process, until `finish`."""

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
        """Blocks until the other end has called this too; the connection is then free for other messages."""
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
