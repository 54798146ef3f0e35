"""The pair over gloo (TCP): a torch.distributed process group of two ranks.

What the pairs over torch.distributed process groups (gloo, NCCL, UCC) have in common.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from collectx.transport.network.admission import ListenerFilter, filter_listeners
from collectx.transport.network.p2p import PairConfig, PendingSend, stamp_view


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
