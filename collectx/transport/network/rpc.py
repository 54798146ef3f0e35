"""The pair over torch RPC (TensorPipe), which pickles calls. Only the trainer calls: weights are the argument of a
call, and a batch is the result of a call, which the trainer makes after the worker has announced the batch.

TensorPipe prints a line when a peer is gone from which it expects a message. A worker never calls, so its agent expects
no message, and prints nothing when the worker's agent ends first.

A process runs one RPC agent. With `rpc.init_rpc`, all peers would inform each other of each new one, so a dead peer
blocks all. Here a worker's agent knows the trainer's only, and the trainer's agent knows those of the workers:

    trainer's agent, id 0 ---- worker's agent, id 1
                        \\--- worker's agent, id 2       (one id for each process of a worker)

They exchange their addresses over the authenticated connection. An agent does not authenticate callers, and unpickles
what it receives. So the trainer's port accepts no connection, and a worker's port accepts one, the trainer's
(`admission.py`). Use it on trusted networks only.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from collectx.config.problem import opt
from collectx.transport.connections import disconnect_poll
from collectx.transport.network.admission import ListenerFilter, filter_listeners
from collectx.transport.network.p2p import TRAINER, PairConfig, PendingSend

# Without TensorPipe's shared-memory transport, which it also chooses between different containers of one host.
_OPTIONS: dict[str, Any] = {"num_worker_threads": 4, "_transports": ["uv"]}
_INTERFACE = "TP_SOCKET_IFNAME"
# torch keeps ids in 16 bits.
_MAX_IDS = 2**15 - 1
# Seconds between two checks of a waiting receiver that the connection still exists.
_CHECK_S = 0.05


def why_not() -> str | None:
    if not rpc.is_available():
        return f"this torch build does not include RPC. Install torch from pytorch.org, or use {opt('backend=gloo')}"
    return None


class RpcPair:
    """One end of a pair over torch RPC. The options of the first open pair apply to all pairs. Raises `RuntimeError` if
    this process uses torch RPC for something else, or on another network.

    Attributes:
        key: the id of the worker's agent.
        inbox: receives the weights; in a worker only.
        outbox: the sent batches that the trainer has not fetched; in a worker only. These slots do not change until the
            trainer grants them again.
    """

    def __init__(self, config: PairConfig, connection: Connection, rank: int, address: str):
        self.inbox = Inbox(connection, config.pair_timeout_s)
        self.outbox: deque[torch.Tensor] = deque()
        self._is_trainer = rank == TRAINER
        self.key = 0
        try:
            self._exchange_addresses(connection, address, {"rpc_timeout": config.pair_timeout_s, **config.options})
        except BaseException:
            self.close()
            raise

    def _exchange_addresses(self, connection: Connection, address: str, options: dict[str, Any]) -> None:
        worker = None if self._is_trainer else json.loads(connection.recv_bytes())
        self.key, address = _agent.register(worker and worker["key"], address, options)
        mine = json.dumps({"key": self.key, "address": address}).encode()
        if worker is None:
            connection.send_bytes(mine)
            _agent.add(self, json.loads(connection.recv_bytes())["address"])
            connection.send_bytes(b"")
        else:
            _agent.add(self, worker["address"])
            connection.send_bytes(mine)
            connection.recv_bytes()

    def send(self, buffer: torch.Tensor) -> PendingSend:
        if self._is_trainer:
            return _agent.call(self.key, _deliver, (self.key, buffer))
        self.outbox.append(buffer)
        return Sent()

    def receive(self, buffer: torch.Tensor) -> InboxReceive | _Fetch:
        return _Fetch(self.key) if self._is_trainer else self.inbox.receive(buffer)

    def close(self) -> None:
        _agent.unregister(self.key)


make = RpcPair


class Inbox:
    """The messages that the trainer delivers to a worker, in a thread of torch RPC. Receiving fails when the connection
    to the trainer breaks, or after the pair's timeout."""

    def __init__(self, connection: Connection, timeout_s: float):
        self.disconnected = disconnect_poll(connection)
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        # At least one of the two is empty.
        self._posted: deque[InboxReceive] = deque()
        self._early: deque[torch.Tensor] = deque()

    def receive(self, buffer: torch.Tensor) -> InboxReceive:
        posted = InboxReceive(self, buffer)
        with self._lock:
            if self._early:
                posted.fill(self._early.popleft())
            else:
                self._posted.append(posted)
        return posted

    def put(self, message: torch.Tensor) -> None:
        """Delivers the next message, from any thread. If its buffer was posted, the message is copied before this
        returns."""
        with self._lock:
            if self._posted:
                self._posted.popleft().fill(message)
            else:
                self._early.append(message)


class Sent:
    """A send that is complete at once; see `collectx.transport.network.p2p.PendingSend`."""

    def wait(self) -> None: ...


class InboxReceive:
    """A receive in progress; see `collectx.transport.network.p2p.PendingReceive`."""

    def __init__(self, inbox: Inbox, buffer: torch.Tensor):
        self._inbox = inbox
        self._buffer = buffer
        self._has_arrived = threading.Event()

    def fill(self, message: torch.Tensor) -> None:
        """Copies the message into the buffer."""
        self._buffer.copy_(message)
        self._has_arrived.set()

    def done(self) -> bool:
        return self._has_arrived.is_set()

    def wait(self) -> torch.Tensor:
        deadline_s = time.monotonic() + self._inbox.timeout_s
        while not self._has_arrived.wait(_CHECK_S):
            if self._inbox.disconnected.poll(0):
                raise RuntimeError("the connection broke while a message was being received")
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"no message arrived for {self._inbox.timeout_s:g} s ({opt('collector.worker_timeout_s')})"
                )
        return self._buffer


class _Fetch:
    """The receive of a batch, which fetches it after the worker has announced it."""

    def __init__(self, key: int):
        self._key = key
        self._future: Any = None

    def done(self) -> bool:
        if self._future is None:
            self._future = _agent.call(self._key, _take, (self._key,))
        return self._future.done()

    def wait(self) -> torch.Tensor:
        self.done()
        return self._future.wait()


def _deliver(key: int, message: torch.Tensor) -> None:
    """Puts a message into the inbox of a worker. The trainer calls this in the worker."""
    _pair(key).inbox.put(message)


def _take(key: int) -> torch.Tensor:
    """Returns and removes the first batch of a worker's outbox. The trainer calls this in the worker."""
    return _pair(key).outbox.popleft()


def _pair(key: int) -> RpcPair:
    _agent.note_call()
    pair = _agent.pairs.get(key)
    if pair is None:
        raise RuntimeError(f"the RPC connection {_name(key)} is closed, because its collector has ended")
    return pair


def _name(key: int) -> str:
    return f"collectx-{key}"


class _Agent:
    """This process's RPC agent, which exists while any pair does. `pairs` contains the pair of each worker, by its
    id."""

    def __init__(self) -> None:
        self.pairs: dict[int, RpcPair] = {}
        self._lock = threading.Lock()
        self._ids = itertools.cycle(range(1, _MAX_IDS))
        self._used: set[int] = set()
        self._agent: Any = None
        self._id = TRAINER
        self._interface: str | None = None
        # In a worker, the filter on its ports, until the trainer has called.
        self._listeners: ListenerFilter | None = None

    def register(self, key: int | None, address: str, options: Mapping[str, Any]) -> tuple[int, str]:
        """Registers a pair under `key`, or in the trainer under a new key. Returns the key and this agent's
        address."""
        with self._lock:
            if not self._used:
                self._start(TRAINER if key is None else key, address, options)
            if key is None:
                key = next(each for each in self._ids if each not in self._used)
            self._used.add(key)
            return key, self._store.get(f"addrs/{_name(self._id)}").decode()

    def _start(self, agent_id: int, address: str, options: Mapping[str, Any]) -> None:
        if rpc.api._is_current_rpc_agent_set():
            raise RuntimeError(
                "this process already uses torch RPC (rpc.init_rpc), which allows one agent per process. Use "
                "another backend, such as gloo."
            )
        interface = _interface_of(address)
        # TensorPipe reads this variable once per process.
        if interface != (self._interface or interface):
            raise RuntimeError(
                f"torch RPC listens on {self._interface} until this process ends, so it cannot listen on "
                f"{interface}. Use one network per process ({opt('backend.interface')})."
            )
        if interface is not None:
            self._interface = os.environ[_INTERFACE] = interface
        self._id = agent_id
        dist_autograd._init(agent_id)
        self._store = dist.HashStore()
        rpc_options = rpc.TensorPipeRpcBackendOptions(**(_OPTIONS | dict(options)))
        make: Any = rpc.TensorPipeAgent
        self._agent = make(self._store, _name(agent_id), agent_id, None, rpc_options, {}, [])
        _, listeners = filter_listeners(lambda: rpc.api._init_rpc_states(self._agent))
        # Nobody calls the trainer.
        if agent_id != TRAINER:
            listeners.allow()
            self._listeners = listeners

    def note_call(self) -> None:
        """Notes that the trainer has connected: from now on, the ports accept no connection."""
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            listeners.block()

    def _peer(self, key: int) -> rpc.WorkerInfo:
        """Returns the agent at the other end of a pair."""
        peer = key if self._id == TRAINER else TRAINER
        return rpc.WorkerInfo(_name(peer), peer)

    def add(self, pair: RpcPair, peer_address: str) -> None:
        """Adds the agent at the other end of a registered pair, so that calls reach the pair."""
        peer = self._peer(pair.key)
        self._store.set(f"addrs/{peer.name}", peer_address)
        with self._lock:
            self.pairs[pair.key] = pair
            self._agent._update_group_membership(peer, [], {}, True)

    def call(self, key: int, function: Callable, arguments: tuple) -> Any:
        """Calls a function at the other end of a pair. Does not block."""
        # torch looks the peer up without holding the GIL.
        with self._lock:
            return rpc.rpc_async(self._peer(key).name, function, arguments)

    def unregister(self, key: int) -> None:
        """Ends a pair."""
        with self._lock:
            if key not in self._used:
                return
            self._used.discard(key)
            if self.pairs.pop(key, None) is not None:
                self._agent._update_group_membership(self._peer(key), [], {}, False)
            if not self._used:
                self.end()

    def end(self) -> None:
        """Ends the agent. Also called at exit, because torch would otherwise end the process with a signal."""
        if self._agent is not None:
            self._agent = self._listeners = None
            rpc.shutdown(graceful=False)


def _interface_of(address: str) -> str | None:
    """Returns the name of the network interface with this address; None without one."""
    plain = address.partition("%")[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == plain for entry in entries):
            return name
    return None


_agent = _Agent()
atexit.register(_agent.end)
