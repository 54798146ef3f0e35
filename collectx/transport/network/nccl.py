"""The pair over NCCL: from GPU to GPU. Each end needs its own GPU, as NCCL refuses two ranks on one.

Envs write a worker's slots in CPU memory; they are staged on the worker's GPU when they are sent. The trainer's slots
lie on its GPU, where the learner uses them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.p2p import TRAINER, WORKER, ConnectionStore


def make(
    connection: Connection, rank: int, address: str, timeout_s: float, device: str, options: Mapping[str, Any]
) -> NcclPair:
    """See `make_pair`."""
    return NcclPair(connection, rank, timeout_s, torch.device(device))


class NcclPair:
    """Two groups, one for each direction: the operations of one group run one after the other, so a receive that is
    posted early would delay every later send.

    Args:
        connection, rank, timeout_s: see `make_pair`.
        device: the GPU of this end.
    """

    def __init__(self, connection: Connection, rank: int, timeout_s: float, device: torch.device):
        # By default a broken pair ends the process, and with it all other pairs.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        self._device = device
        self._peer = 1 - rank
        self._is_open = True
        nccl: Any = dist.ProcessGroupNCCL
        exchange = ConnectionStore(connection)
        with torch.cuda.device(device):
            groups = []
            for sender in (WORKER, TRAINER):
                options = nccl.Options()
                options._timeout = timedelta(seconds=timeout_s)
                group = nccl(dist.PrefixStore(str(sender), exchange), rank, 2, options)
                # The first operation connects.
                byte = torch.zeros(1, dtype=torch.uint8, device=device)
                (group.send if rank == sender else group.recv)([byte], self._peer, 0).wait()
                groups.append(group)
            torch.cuda.synchronize(device)
        exchange.finish()
        upwards, downwards = groups
        self._outwards, self._inwards = (downwards, upwards) if rank == TRAINER else (upwards, downwards)

    def send(self, buffer: torch.Tensor) -> NcclTransfer:
        with torch.cuda.device(self._device):
            staged = buffer.to(self._device)
            return NcclTransfer(self._outwards.send([staged], self._peer, 0), staged, staged)

    def receive(self, buffer: torch.Tensor) -> NcclTransfer:
        with torch.cuda.device(self._device):
            staged = buffer if buffer.is_cuda else torch.empty_like(buffer, device=self._device)
            return NcclTransfer(self._inwards.recv([staged], self._peer, 0), staged, buffer)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            for group in (self._inwards, self._outwards):
                group.abort()


class NcclTransfer:
    """A transfer in progress, through the GPU buffer `staged`."""

    def __init__(self, work: dist.Work, staged: torch.Tensor, buffer: torch.Tensor):
        self._work = work
        self._staged = staged
        self._buffer = buffer

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> torch.Tensor:
        self._work.wait()
        if self._buffer is not self._staged:
            self._buffer.copy_(self._staged)
        return self._buffer
