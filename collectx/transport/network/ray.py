"""The pair over Ray's object store, and workers that are Ray actors. The cluster is in `ray_cluster.py`; nothing else
imports ray.

    trainer                                                  worker, an actor
    posted receives  <---- one stream of objects -----------  `messages`, in a thread of the actor
    ray.put, once for all workers ---- the object's name -->  `take`, in another

A worker's message lies in the store of its node; the trainer's node fetches it, and the trainer reads it where it then
lies. Ray pickles what its processes tell each other, and asks them for its own token, not for the run's secret.
"""

from __future__ import annotations

import pickle
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import ray
import torch

from collectx.transport.network.p2p import TRAINER, stamp_of
from collectx.transport.network.reorder_buffer import PendingReceive, ReorderBuffer

# Its work, the stream of what it sends, what it is sent.
_NUM_THREADS = 3


def problems(name: str, configs: Any) -> list[str]:
    """What Ray says against arguments of `ray.remote`, one dict or a list of such, which are called `name`."""
    found = []
    for config in configs if isinstance(configs, (list, tuple)) else [configs]:
        try:
            actor_class(config)
        except (TypeError, ValueError) as error:
            found.append(f"{name}: {error}")
    return list(dict.fromkeys(found))


def actor_class(config: Mapping[str, Any] | None) -> Any:
    """The class of workers' actors, with `config` as arguments of `ray.remote`."""
    make: Any = ray.remote(**{"max_restarts": 0, **(config or {}), "max_concurrency": _NUM_THREADS})
    return make(Actor)


# The actors that this process has started and that live, by their ids.
actors: dict[str, Any] = {}


class Actor:
    """What runs in a worker's process. Ray calls each of these in a thread of its own."""

    def work(self, path: list[str], call: bytes) -> None:
        """Calls a function: `call` is a pickle of it and of its arguments."""
        # The pickle may refer to modules that are found by this path.
        sys.path[:] = path
        function, arguments = pickle.loads(call)
        function(*arguments)

    def is_there(self) -> None:
        """Says so."""

    def messages(self) -> Any:
        """Yields what the pair of this process sends."""
        while True:
            sending = _outbox.get()
            yield sending.message
            # It is in the store now.
            sending.is_over.set()

    def take(self, number: int, message: np.ndarray) -> None:
        """What the trainer calls."""
        _inbox.result(message, number)


class _Inbox:
    """This process's reorder_buffer, from when it is there on."""

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self.reorder_buffer: Any = None

    def open(self, reorder_buffer: ReorderBuffer) -> None:
        self.reorder_buffer = reorder_buffer
        self._is_there.set()

    def result(self, message: np.ndarray, number: int) -> None:
        self._is_there.wait()
        self.reorder_buffer.put(number, _tensor(message))


class _Sending:
    """A message on its way into the store."""

    def __init__(self, buffer: torch.Tensor, timeout_s: float):
        self.message = buffer.numpy()
        self.is_over = threading.Event()
        self._timeout_s = timeout_s

    def wait(self) -> None:
        if not self.is_over.wait(self._timeout_s):
            raise RuntimeError(f"Ray did not take a message for {self._timeout_s:g} s (collector.worker_timeout_s)")


_outbox: queue.SimpleQueue[_Sending] = queue.SimpleQueue()
_inbox = _Inbox()


def make(
    connection: Connection, rank: int, address: str, timeout_s: float, device: str, options: Mapping[str, Any]
) -> TrainerEnd | WorkerEnd:
    """See `make_pair`.

    Raises:
        RuntimeError: the worker is no actor that this trainer has started.
    """
    return TrainerEnd(connection, timeout_s) if rank == TRAINER else WorkerEnd(connection, timeout_s)


class WorkerEnd:
    """In the actor."""

    def __init__(self, connection: Connection, timeout_s: float):
        self._reorder_buffer = ReorderBuffer(connection, timeout_s)
        self._timeout_s = timeout_s
        _inbox.open(self._reorder_buffer)
        mine = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        connection.send_bytes((mine or "").encode())

    def send(self, buffer: torch.Tensor) -> _Sending:
        sending = _Sending(buffer, self._timeout_s)
        _outbox.put(sending)
        return sending

    def receive(self, buffer: torch.Tensor) -> PendingReceive:
        return self._reorder_buffer.post(buffer)

    def close(self) -> None:
        """The actor ends it."""


class TrainerEnd:
    """In the trainer."""

    def __init__(self, connection: Connection, timeout_s: float):
        name = connection.recv_bytes().decode()
        if name not in actors:
            raise RuntimeError("backend=ray: this worker is no Ray actor of this trainer: use launcher=ray")
        self._actor = actors[name]
        self._timeout_s = timeout_s
        self._stream = self._actor.messages.remote()
        self._num_sent = 0

    def send(self, buffer: torch.Tensor) -> _Sent:
        number, self._num_sent = self._num_sent, self._num_sent + 1
        try:
            self._actor.take.remote(number, _stored.object(buffer))
        except ray.exceptions.RayError as error:
            raise RuntimeError(str(error)) from error
        return _Sent()

    def receive(self, buffer: torch.Tensor) -> _Fetched:
        return _Fetched(self._stream, self._timeout_s)

    def close(self) -> None:
        """Nothing is to be broken off: the actor ends with its connection, or is killed."""


class _Sent:
    """Weights that are in the store: their buffer is free."""

    def wait(self) -> None: ...


class _Fetched:
    """The next message of a stream; to be asked for when the worker has said that it has sent it."""

    def __init__(self, stream: Any, timeout_s: float):
        self._stream = stream
        self._timeout_s = timeout_s
        self._reference: Any = None
        self._message: torch.Tensor | None = None

    def done(self) -> bool:
        return self._is_here(0.0)

    def wait(self) -> torch.Tensor:
        if self._message is None:
            if not self._is_here(self._timeout_s):
                raise RuntimeError(f"Ray brought no message for {self._timeout_s:g} s (collector.worker_timeout_s)")
            try:
                self._message = _tensor(ray.get(self._reference))
            except ray.exceptions.RayError as error:
                raise RuntimeError(str(error).splitlines()[0]) from error
        return self._message

    def _is_here(self, timeout_s: float) -> bool:
        """Whether it is on this node, or will not come; it is fetched meanwhile, where it is on another."""
        if self._reference is None:
            if not ray.wait([self._stream], timeout=timeout_s)[0]:
                return False
            self._reference = next(self._stream)
        return bool(ray.wait([self._reference], timeout=timeout_s)[0])


class _Stored:
    """The newest weights that were put into the store: once for all workers."""

    def __init__(self) -> None:
        # Not by its address, which a buffer of a later collector may have.
        self._buffer: Callable[[], torch.Tensor | None] = lambda: None
        self._stamp = 0
        self._object: Any = None

    def object(self, buffer: torch.Tensor) -> Any:
        """The object that holds stamped weights."""
        if self._buffer() is not buffer or self._stamp != stamp_of(buffer):
            self._object = ray.put(buffer.numpy())
            self._buffer, self._stamp = weakref.ref(buffer), stamp_of(buffer)
        return self._object


_stored = _Stored()


def _tensor(message: np.ndarray) -> torch.Tensor:
    """The memory of the store, which stays while the tensor does. Ray marks it as read-only, of which torch warns: here
    nobody else reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(message)
