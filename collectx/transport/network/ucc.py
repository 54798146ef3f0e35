"""The pair over UCC, which torch must be built with: over any network that UCX supports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.p2p import TRAINER, WORKER, ConnectionStore


def make(
    connection: Connection, rank: int, address: str, timeout_s: float, device: str, options: Mapping[str, Any]
) -> UccPair:
    """See `make_pair`."""
    return UccPair(connection, rank, timeout_s)


class UccPair:
    """See `make_pair` for the arguments."""

    def __init__(self, connection: Connection, rank: int, timeout_s: float):
        ucc: Any = dist.ProcessGroupUCC
        exchange = ConnectionStore(connection)
        self._group: Any = ucc(exchange, rank, 2, timedelta(seconds=timeout_s))
        self._peer = 1 - rank
        # The first operation connects.
        byte = torch.zeros(1, dtype=torch.uint8)
        for sender in (WORKER, TRAINER):
            (self._group.send if rank == sender else self._group.recv)([byte], self._peer, 0).wait()
        exchange.finish()

    def send(self, buffer: torch.Tensor) -> UccTransfer:
        return UccTransfer(self._group.send([buffer], self._peer, 0), buffer)

    def receive(self, buffer: torch.Tensor) -> UccTransfer:
        return UccTransfer(self._group.recv([buffer], self._peer, 0), buffer)

    def close(self) -> None:
        self._group = None


class UccTransfer:
    """A transfer in progress."""

    def __init__(self, work: dist.Work, buffer: torch.Tensor):
        self._work = work
        self._buffer = buffer

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> torch.Tensor:
        self._work.wait()
        return self._buffer
