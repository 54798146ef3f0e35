"""The pair over UCC, for any network that UCX supports. Needs a torch that is built with UCC."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.config.problem import opt
from collectx.transport.network.gloo import ConnectionStore, GroupPair, connect
from collectx.transport.network.p2p import TRAINER, WORKER, PairConfig


def why_not() -> str | None:
    if not dist.is_ucc_available():
        return f"torch {torch.__version__} is built without UCC. Build it with USE_UCC=1, or use {opt('backend=gloo')}"
    return None


class UccPair(GroupPair):
    """One end of a pair over UCC."""

    def __init__(self, config: PairConfig, connection: Connection, rank: int, address: str):
        ucc: Any = dist.ProcessGroupUCC
        store = ConnectionStore(connection)
        group = ucc(store, rank, 2, timedelta(seconds=config.pair_timeout_s))
        for sender in (WORKER, TRAINER):
            connect(group, rank, sender)
        store.finish()
        super().__init__(group, group, 1 - rank)

    def close(self) -> None:
        self._inwards = self._outwards = None


make = UccPair
