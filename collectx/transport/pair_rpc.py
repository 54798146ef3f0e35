"""The pair over torch RPC (TensorPipe): what is sent is the argument of a call at the other end. torch pickles calls.

A process has one RPC agent. `rpc.init_rpc` would make all peers of a run tell each other about everyone who joins, so
that a dead one blocks them all; here a worker's agent knows the trainer's and nobody else, and the trainer's knows the
workers that there are:

    trainer's agent, id 0 ---- worker's agent, id 1
                        \\--- worker's agent, id 2       (ids are for one life of a worker)

They learn each other's addresses over the authenticated connection. An agent itself asks nobody who calls it for a
secret, and whoever reaches its port can have it unpickle anything: it is for networks of one's own alone.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from collectx.transport.mailbox import Mailbox, Posted
from collectx.transport.pair import TRAINER, Outgoing

# TensorPipe's other transport, shared memory, takes every process of one kernel for a neighbour, those of other
# containers as well.
_OPTIONS: dict[str, Any] = {"num_worker_threads": 4, "_transports": ["uv"]}
_INTERFACE = "TP_SOCKET_IFNAME"
# torch keeps ids in 16 bits.
_MOST_IDS = 2**15 - 1


class RpcPair:
    """One end.

    Args:
        connection, rank, address, timeout_s: see `GlooPair`.
        options: of `torch.distributed.rpc.TensorPipeRpcBackendOptions`; while there is a pair, those of the first hold.

    Attributes:
        key: the id of the worker's agent.
        mailbox: where messages come in.

    Raises:
        RuntimeError: this process uses torch RPC for something else, or on another network.
    """

    def __init__(self, connection: Connection, rank: int, address: str, timeout_s: float, options: Mapping[str, Any]):
        self.mailbox = Mailbox(connection, timeout_s)
        self._num_sent = 0
        self.key, self._peer = 0, _name(TRAINER)
        try:
            self._meet(connection, rank, address, {"rpc_timeout": timeout_s, **options})
        except BaseException:
            self.close()
            raise

    def _meet(self, connection: Connection, rank: int, address: str, options: Mapping[str, Any]) -> None:
        if rank == TRAINER:
            self.key, mine = _agent.enter(None, address, options)
            self._peer = _name(self.key)
            connection.send_bytes(json.dumps({"key": self.key, "place": mine}).encode())
            _agent.meet(self._peer, self.key, json.loads(connection.recv_bytes())["place"], self)
            connection.send_bytes(b"")
        else:
            told = json.loads(connection.recv_bytes())
            self.key, mine = _agent.enter(told["key"], address, options)
            _agent.meet(self._peer, TRAINER, told["place"], self)
            connection.send_bytes(json.dumps({"place": mine}).encode())
            connection.recv_bytes()

    def send(self, buffer: torch.Tensor) -> Outgoing:
        number, self._num_sent = self._num_sent, self._num_sent + 1
        return _agent.call(self._peer, (self.key, number, buffer))

    def receive(self, buffer: torch.Tensor, stamp: int | None = None) -> Posted:
        return self.mailbox.post(buffer)

    def close(self) -> None:
        _agent.leave(self._peer, self.key)


def _take(key: int, number: int, message: torch.Tensor) -> None:
    """What the other end calls here; the call is over when the message is where it belongs."""
    pair = _agent.pairs.get(key)
    if pair is None:
        raise RuntimeError("this pair is closed")
    pair.mailbox.put(number, message)


def _name(key: int) -> str:
    return f"collectx-{key}"


class _Agent:
    """This process's RPC agent: there while any pair is.

    Attributes:
        pairs: by the worker's id.
    """

    def __init__(self) -> None:
        self.pairs: dict[int, RpcPair] = {}
        self._lock = threading.Lock()
        self._ids = itertools.cycle(range(1, _MOST_IDS))
        self._used: set[int] = set()
        self._agent: Any = None
        self._interface: str | None = None

    def enter(self, key: int | None, address: str, options: Mapping[str, Any]) -> tuple[int, str]:
        """Begins a pair of that key, or in the trainer of a new one; returns it, and where this agent listens."""
        with self._lock:
            mine = TRAINER if key is None else key
            if not self._used:
                self._begin(mine, address, options)
            if key is None:
                key = next(each for each in self._ids if each not in self._used)
            self._used.add(key)
            return key, self._store.get(f"addrs/{_name(mine)}").decode()

    def _begin(self, mine: int, address: str, options: Mapping[str, Any]) -> None:
        if rpc.api._is_current_rpc_agent_set():
            raise RuntimeError("this process uses torch RPC already (rpc.init_rpc), which has one agent in a process")
        interface = _interface_of(address)
        # TensorPipe looks once in the life of a process.
        if interface != (self._interface or interface):
            raise RuntimeError(
                f"torch RPC listens on {self._interface} for as long as this process lives, and cannot on {interface}: "
                "use one network in one process (backend.interface)"
            )
        if interface is not None:
            self._interface = os.environ[_INTERFACE] = interface
        dist_autograd._init(mine)
        self._store = dist.HashStore()
        chosen = rpc.TensorPipeRpcBackendOptions(**(_OPTIONS | dict(options)))
        make: Any = rpc.TensorPipeAgent
        self._agent = make(self._store, _name(mine), mine, None, chosen, {}, [])
        rpc.api._init_rpc_states(self._agent)

    def meet(self, name: str, id: int, place: str, pair: RpcPair) -> None:
        """Takes a peer's agent in, and what it sends from now on."""
        self._store.set(f"addrs/{name}", place)
        with self._lock:
            self.pairs[pair.key] = pair
            self._agent._update_group_membership(rpc.WorkerInfo(name, id), [], {}, True)

    def call(self, name: str, message: tuple[int, int, torch.Tensor]) -> Any:
        """Has a peer take a message. Does not block."""
        # torch looks the peer up without the interpreter's lock.
        with self._lock:
            return rpc.rpc_async(name, _take, message)

    def leave(self, name: str, key: int) -> None:
        """Ends a pair."""
        with self._lock:
            if key not in self._used:
                return
            self._used.discard(key)
            if self.pairs.pop(key, None) is not None:
                id = TRAINER if name == _name(TRAINER) else key
                self._agent._update_group_membership(rpc.WorkerInfo(name, id), [], {}, False)
            if not self._used:
                self.end()

    def end(self) -> None:
        """Also at exit: torch would end the process with a signal."""
        if self._agent is not None:
            self._agent = None
            rpc.shutdown(graceful=False)


def _interface_of(address: str) -> str | None:
    """The network interface that has this address."""
    import psutil

    plain = address.partition("%")[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == plain for entry in entries):
            return name
    return None


_agent = _Agent()
atexit.register(_agent.end)
