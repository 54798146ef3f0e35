"""The pair over NCCL, from GPU to GPU. Each end needs its own GPU, because NCCL refuses two ranks on one.

A worker's slots are in CPU memory, where envs write; `send` copies them to the worker's GPU first. The trainer's slots
are on its GPU, where the trainer uses them.
"""

from __future__ import annotations

import os
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.config.problem import opt
from collectx.transport.network.gloo import ConnectionStore, GroupPair, GroupReceive, connect
from collectx.transport.network.p2p import TRAINER, WORKER, PairConfig


def why_not() -> str | None:
    gloo = opt("backend=gloo")
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA. Install a build with CUDA, or use {gloo}"
    if not torch.cuda.is_available():
        return f"torch sees no GPU. Use {gloo}"
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} is built without NCCL. Install a build with NCCL, or use {gloo}"
    return None


class NcclPair(GroupPair):
    """One end of a pair over NCCL. It uses a process group for each direction: operations of one group run one after
    the other, so a receive that is posted early would delay every later send."""

    def __init__(self, config: PairConfig, connection: Connection, rank: int, address: str):
        # By default a broken pair ends the process, and with it all other pairs.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        self._device = torch.device(config.devices[rank])
        nccl: Any = dist.ProcessGroupNCCL
        store = ConnectionStore(connection)
        groups = []
        with torch.cuda.device(self._device):
            for sender in (WORKER, TRAINER):
                options = nccl.Options()
                options._timeout = timedelta(seconds=config.pair_timeout_s)
                groups.append(nccl(dist.PrefixStore(str(sender), store), rank, 2, options))
                connect(groups[-1], rank, sender, self._device)
            torch.cuda.synchronize(self._device)
        store.finish()
        upwards, downwards = groups
        outwards, inwards = (downwards, upwards) if rank == TRAINER else (upwards, downwards)
        super().__init__(outwards, inwards, 1 - rank)

    def send(self, buffer: torch.Tensor) -> _StagedTransfer:
        with torch.cuda.device(self._device):
            staged = buffer.to(self._device)
            return _StagedTransfer(self._outwards.send([staged], self._peer, 0), staged, staged)

    def receive(self, buffer: torch.Tensor) -> _StagedTransfer:
        with torch.cuda.device(self._device):
            staged = buffer if buffer.is_cuda else torch.empty_like(buffer, device=self._device)
            return _StagedTransfer(self._inwards.recv([staged], self._peer, 0), staged, buffer)


make = NcclPair


class _StagedTransfer(GroupReceive):
    """A transfer in progress, by way of the GPU buffer `staged`."""

    def __init__(self, work: dist.Work, staged: torch.Tensor, buffer: torch.Tensor):
        super().__init__(work, buffer)
        self._staged = staged

    def wait(self) -> torch.Tensor:
        super().wait()
        if self._buffer is not self._staged:
            self._buffer.copy_(self._staged)
        return self._buffer
