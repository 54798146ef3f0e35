"""The pair over UCC, which torch must be built with: over any network that UCX supports."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.p2p import TRAINER, WORKER, PairSetup
from collectx.transport.network.process_group import ConnectionStore, GroupPair, connect


def why_not() -> str | None:
    """See `collectx.transport.network.p2p`."""
    if not dist.is_ucc_available():
        return f"torch {torch.__version__} is built without UCC: build it with USE_UCC=1, or use backend=gloo"
    return None


class UccPair(GroupPair):
    """One end."""

    def __init__(self, setup: PairSetup):
        ucc: Any = dist.ProcessGroupUCC
        store = ConnectionStore(setup.connection)
        group = ucc(store, setup.rank, 2, timedelta(seconds=setup.timeout_s))
        for sender in (WORKER, TRAINER):
            connect(group, setup.rank, sender)
        store.finish()
        super().__init__(group, group, 1 - setup.rank)

    def close(self) -> None:
        self._inwards = self._outwards = None


make = UccPair
