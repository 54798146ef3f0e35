"""The pair over gloo (TCP): a torch.distributed process group of two ranks."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.listener_filter import ListenerFilter, filter_listeners
from collectx.transport.network.p2p import PairConfig, stamp_view
from collectx.transport.network.process_group import ConnectionStore, GroupPair, GroupReceive


def why_not() -> str | None:
    if not dist.is_available() or not dist.is_gloo_available():
        return "this torch build does not include gloo. Install torch from pytorch.org"
    return None


class GlooPair(GroupPair):
    """One end of a pair over gloo."""

    def __init__(self, config: PairConfig, connection: Connection, rank: int, address: str):
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        with _device_lock:
            device, listeners = _device(address, os.getpid())
        options._devices = [device]
        # These threads run collective operations; sends and receives need none.
        options._threads = 0
        options._timeout = timedelta(seconds=config.pair_timeout_s)
        store = ConnectionStore(connection)
        listeners.allow()
        try:
            group = gloo(store, rank, 2, options)
            store.finish()
        finally:
            listeners.block()
        super().__init__(group, group, 1 - rank)

    def receive(self, buffer: torch.Tensor) -> _GlooReceive:
        stamp = stamp_view(buffer)
        # Clears the stamp of an earlier message in this buffer.
        stamp[0] = 0
        return _GlooReceive(self._inwards.recv([buffer], self._peer, 0), buffer, stamp)


make = GlooPair
_device_lock = threading.Lock()


@cache
def _device(address: str, process: int) -> tuple[Any, ListenerFilter]:
    """Returns gloo's device for an address, and the filter on its sockets. All pairs of the process share a device,
    because its thread wakes a hundred times a second: with one per pair, a thousand idle workers would cost the trainer
    a core. `process` is the pid of this process, so that a fork makes its own device: it shares the sockets, but lacks
    the threads."""
    # gloo's sockets are inheritable, unlike those of Python.
    return filter_listeners(lambda: dist.ProcessGroupGloo.create_device(hostname=address), os.get_inheritable)


class _GlooReceive(GroupReceive):
    """A receive in progress. gloo cannot tell without blocking whether a receive is complete. But it writes the bytes
    of a message into the buffer in order: when the stamp at the end has arrived, `wait` returns at once."""

    def __init__(self, work: dist.Work, buffer: torch.Tensor, stamp: Any):
        super().__init__(work, buffer)
        self._stamp = stamp

    def done(self) -> bool:
        return bool(self._stamp[0])
