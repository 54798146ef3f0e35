"""The pair over gloo: TCP, by a torch.distributed process group of two."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.listener_filter import ListenerFilter, filter_listeners
from collectx.transport.network.p2p import ConnectionStore, Outgoing, set_stamp, stamp_of


def make(
    connection: Connection, rank: int, address: str, timeout_s: float, device: str, options: Mapping[str, Any]
) -> GlooPair:
    """See `make_pair`."""
    return GlooPair(connection, rank, address, timeout_s)


class GlooPair:
    """See `make_pair` for the arguments."""

    def __init__(self, connection: Connection, rank: int, address: str, timeout_s: float):
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        with _device_lock:
            device, listeners = _device(address)
        options._devices = [device]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        store = ConnectionStore(connection)
        with listeners.allowed():
            self._group: Any = gloo(store, rank, 2, options)
            store.finish()
        self._peer = 1 - rank

    def send(self, buffer: torch.Tensor) -> Outgoing:
        return self._group.send([buffer], self._peer, 0)

    def receive(self, buffer: torch.Tensor) -> _GlooIncoming:
        # An earlier message's stamp must not be taken for this one's.
        set_stamp(buffer, 0)
        return _GlooIncoming(self._group.recv([buffer], self._peer, 0), buffer)

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._group = None


_device_lock = threading.Lock()


@cache
def _device(address: str) -> tuple[Any, ListenerFilter]:
    """The sockets of this process on that address. All pairs share it, as its thread wakes a hundred times a
    second: with one for each pair, a thousand idle workers would cost the trainer a core."""
    # gloo's sockets are inheritable, unlike those of Python.
    return filter_listeners(lambda: dist.ProcessGroupGloo.create_device(hostname=address), os.get_inheritable)


class _GlooIncoming:
    """gloo does not tell whether a receive is complete without blocking. It writes the bytes of a message in order,
    straight into the buffer: once the stamp at its end has arrived, `wait` returns at once."""

    def __init__(self, work: dist.Work, buffer: torch.Tensor):
        self._work = work
        self._buffer = buffer
        self._is_over = False

    def done(self) -> bool:
        return stamp_of(self._buffer) != 0

    def wait(self) -> torch.Tensor:
        # gloo would wait for another message the second time.
        if not self._is_over:
            self._work.wait()
            self._is_over = True
        return self._buffer
