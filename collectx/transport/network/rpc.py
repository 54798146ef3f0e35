"""The pair over torch RPC (TensorPipe), by calls of the trainer: weights are the argument of one, a batch is what one
returns, when the worker has said that it is there. torch pickles calls.

TensorPipe prints a line when a peer goes from whom it awaits anything. A worker calls nobody, so at a regular end, when
its agent goes first, nobody awaits anything.

A process has one RPC agent. `rpc.init_rpc` would make all peers of a run tell each other about everyone who joins, so
that a dead one blocks them all; here a worker's agent knows the trainer's and nobody else, and the trainer's knows the
workers that there are:

    trainer's agent, id 0 ---- worker's agent, id 1
                        \\--- worker's agent, id 2       (ids are for one life of a worker)

They learn each other's addresses over the authenticated connection. An agent itself asks nobody who calls it for a
secret, and whoever reaches its port can have it unpickle anything. The trainer's is closed to all, a worker's once the
trainer has called it (`listener_filter.py`): it is for networks of one's own alone.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from collectx.transport.network.listener_filter import ListenerFilter, filter_listeners
from collectx.transport.network.p2p import TRAINER, Outgoing
from collectx.transport.network.reorder_buffer import PendingReceive, ReorderBuffer

# TensorPipe's other transport, shared memory, takes every process of one kernel for a neighbour, those of other
# containers as well.
_OPTIONS: dict[str, Any] = {"num_worker_threads": 4, "_transports": ["uv"]}
_INTERFACE = "TP_SOCKET_IFNAME"
# torch keeps ids in 16 bits.
_MOST_IDS = 2**15 - 1


def make(
    connection: Connection, rank: int, address: str, timeout_s: float, device: str, options: Mapping[str, Any]
) -> RpcPair:
    """See `make_pair`."""
    return RpcPair(connection, rank, address, timeout_s, options)


class RpcPair:
    """One end.

    Args:
        connection, rank, address, timeout_s: see `make_pair`.
        options: of `torch.distributed.rpc.TensorPipeRpcBackendOptions`; while there is a pair, those of the first hold.

    Attributes:
        key: the id of the worker's agent.
        reorder_buffer: in a worker, where weights come in.

    Raises:
        RuntimeError: this process uses torch RPC for something else, or on another network.
    """

    def __init__(self, connection: Connection, rank: int, address: str, timeout_s: float, options: Mapping[str, Any]):
        self.reorder_buffer = ReorderBuffer(connection, timeout_s)
        self._num_sent = self._num_received = 0
        # What a worker has sent, until it is asked for.
        self._outbox: dict[int, torch.Tensor] = {}
        self._is_trainer = rank == TRAINER
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
        if self._is_trainer:
            return _agent.call(self._peer, _take, (self.key, number, buffer))
        self._outbox[number] = buffer
        return _Handed()

    def receive(self, buffer: torch.Tensor) -> PendingReceive | _Asked:
        if not self._is_trainer:
            return self.reorder_buffer.post(buffer)
        number, self._num_received = self._num_received, self._num_received + 1
        return _Asked(lambda: _agent.call(self._peer, _give, (self.key, number)))

    def hand(self, number: int) -> torch.Tensor:
        """Called in a worker: a message of its outbox."""
        return self._outbox.pop(number)

    def close(self) -> None:
        _agent.leave(self._peer, self.key)


class _Handed:
    """A batch that the trainer will ask for: its slot stays as it is until the trainer grants it again."""

    def wait(self) -> None: ...


class _Asked:
    """A batch; to be asked for when the worker has said that it has sent it."""

    def __init__(self, ask: Callable[[], Any]):
        self._ask = ask
        self._answer: Any = None
        self._message: torch.Tensor | None = None

    def done(self) -> bool:
        if self._answer is None:
            self._answer = self._ask()
        return self._answer.done()

    def wait(self) -> torch.Tensor:
        if self._message is None:
            self.done()
            self._message = self._answer.wait()
            assert self._message is not None
        return self._message


def _take(key: int, number: int, message: torch.Tensor) -> None:
    """What the trainer calls in a worker; the call is over when the message is where it belongs."""
    _pair(key).reorder_buffer.put(number, message)


def _give(key: int, number: int) -> torch.Tensor:
    """What the trainer calls in a worker."""
    return _pair(key).hand(number)


def _pair(key: int) -> RpcPair:
    _agent.is_called()
    pair = _agent.pairs.get(key)
    if pair is None:
        raise RuntimeError("this pair is closed")
    return pair


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
        # In a worker, until the trainer has called.
        self._open_door: ListenerFilter | None = None

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
        _, door = filter_listeners(lambda: rpc.api._init_rpc_states(self._agent))
        # Nobody calls the trainer.
        if mine != TRAINER:
            door.open()
            self._open_door = door

    def is_called(self) -> None:
        """Notes that the trainer has connected: nobody else is expected."""
        door, self._open_door = self._open_door, None
        if door is not None:
            door.close()

    def meet(self, name: str, id: int, place: str, pair: RpcPair) -> None:
        """Takes a peer's agent in, and what it sends from now on."""
        self._store.set(f"addrs/{name}", place)
        with self._lock:
            self.pairs[pair.key] = pair
            self._agent._update_group_membership(rpc.WorkerInfo(name, id), [], {}, True)

    def call(self, name: str, function: Callable, arguments: tuple) -> Any:
        """Has a peer call a function. Does not block."""
        # torch looks the peer up without the interpreter's lock.
        with self._lock:
            return rpc.rpc_async(name, function, arguments)

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
            self._agent = self._open_door = None
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
