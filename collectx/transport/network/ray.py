"""The pair over Ray's object store, and workers that are Ray actors. Besides this module, only `launcher/ray.py` and
`launcher/ray_cluster.py` import ray.

    trainer                                                  worker, an actor
    posted receives  <---- one stream of objects -----------  `Actor.messages`, in a thread of the actor
    ray.put, once for all workers ---- object reference --->  `Actor.take`, in another thread

A worker's message lies in the object store of its node; the trainer's node fetches it, and the trainer reads it there
without a copy. Ray pickles its messages, and authenticates by its own token, not by the run's secret.
"""

from __future__ import annotations

import pickle
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import ray
import torch

from collectx.transport.network.inbox import Inbox, InboxReceive, Sent
from collectx.transport.network.p2p import TRAINER, PairConfig, stamp_of

# Threads of an actor: for `work`, `messages` and `take`.
_NUM_THREADS = 3


def problems(name: str, configs: Any) -> list[str]:
    """Ray's objections to the arguments of `ray.remote`, a dict or a list of dicts, of the option `name`."""
    objections = []
    for config in configs if isinstance(configs, (list, tuple)) else [configs]:
        try:
            actor_class(config)
        except (TypeError, ValueError) as error:
            objections.append(f"{name}: {error}")
    return list(dict.fromkeys(objections))


def actor_class(config: Mapping[str, Any] | None) -> Any:
    """The class of the workers' actors, with `config` as the arguments of `ray.remote`."""
    make: Any = ray.remote(**{"max_restarts": 0, **(config or {}), "max_concurrency": _NUM_THREADS})
    return make(Actor)


# The live actors that this process has started, by id.
actors: dict[str, Any] = {}


class Actor:
    """Runs in a worker's process. Ray calls each method in a separate thread."""

    def work(self, path: list[str], num_threads: int, call: bytes) -> None:
        """Runs the worker: calls the pickled function with the pickled arguments in `call`."""
        # The pickle may refer to modules on the trainer's path.
        sys.path[:] = path
        torch.set_num_threads(num_threads)
        function, arguments = pickle.loads(call)
        function(*arguments)

    def ready(self) -> None:
        """Returns once the actor's process has started."""

    def messages(self) -> Any:
        """Yields the messages that this process's pair sends."""
        while True:
            send = _outbox.get()
            yield send.message
            # The message has been stored.
            send.is_over.set()

    def take(self, message: np.ndarray) -> None:
        """Called by the trainer with weights."""
        _inbox.result().put(_tensor(message))


class _StoreSend:
    """A send in progress, until its message has been stored."""

    def __init__(self, buffer: torch.Tensor, timeout_s: float):
        self.message = buffer.numpy()
        self.is_over = threading.Event()
        self._timeout_s = timeout_s

    def wait(self) -> None:
        if not self.is_over.wait(self._timeout_s):
            raise RuntimeError(f"Ray did not take a message for {self._timeout_s:g} s (collector.worker_timeout_s)")


_outbox: queue.SimpleQueue[_StoreSend] = queue.SimpleQueue()
# Set when this process has made its pair.
_inbox: Future[Inbox] = Future()


class WorkerPair:
    """The worker's end."""

    def __init__(self, connection: Connection, timeout_s: float):
        self._inbox = Inbox(connection, timeout_s)
        self._timeout_s = timeout_s
        _inbox.set_result(self._inbox)
        actor_id = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        connection.send_bytes((actor_id or "").encode())

    def send(self, buffer: torch.Tensor) -> _StoreSend:
        send = _StoreSend(buffer, self._timeout_s)
        _outbox.put(send)
        return send

    def receive(self, buffer: torch.Tensor) -> InboxReceive:
        return self._inbox.receive(buffer)

    def close(self) -> None:
        """Does nothing: the channel ends with the actor."""


class TrainerPair:
    """The trainer's end.

    Raises:
        RuntimeError: the worker is no actor of this trainer.
    """

    def __init__(self, connection: Connection, timeout_s: float):
        name = connection.recv_bytes().decode()
        if name not in actors:
            raise RuntimeError("backend=ray: this worker is no Ray actor of this trainer: use launcher=ray")
        self._actor = actors[name]
        self._timeout_s = timeout_s
        self._stream = self._actor.messages.remote()

    def send(self, buffer: torch.Tensor) -> Sent:
        try:
            self._actor.take.remote(_weight_store.object(buffer))
        except ray.exceptions.RayError as error:
            raise RuntimeError(str(error)) from error
        return Sent()  # the weights are in the store

    def receive(self, buffer: torch.Tensor) -> _StreamReceive:
        return _StreamReceive(self._stream, self._timeout_s)

    def close(self) -> None:
        """Does nothing: the actor ends with its control connection, or is killed."""


def make(config: PairConfig, connection: Connection, rank: int, address: str) -> TrainerPair | WorkerPair:
    """See `collectx.transport.network.p2p`."""
    return (TrainerPair if rank == TRAINER else WorkerPair)(connection, config.pair_timeout_s)


def why_not() -> str | None:
    """See `collectx.transport.network.p2p`."""
    return None


class _StreamReceive:
    """The next message of a stream, which is fetched after the worker has announced it."""

    def __init__(self, stream: Any, timeout_s: float):
        self._stream = stream
        self._timeout_s = timeout_s
        self._reference: Any = None
        self._message: torch.Tensor | None = None

    def done(self) -> bool:
        return self._has_arrived(0.0)

    def wait(self) -> torch.Tensor:
        if self._message is None:
            if not self._has_arrived(self._timeout_s):
                raise RuntimeError(f"Ray brought no message for {self._timeout_s:g} s (collector.worker_timeout_s)")
            try:
                self._message = _tensor(ray.get(self._reference))
            except ray.exceptions.RayError as error:
                raise RuntimeError(str(error).splitlines()[0]) from error
        return self._message

    def _has_arrived(self, timeout_s: float) -> bool:
        """Whether the message is on this node, or has failed; starts to fetch it from another node."""
        if self._reference is None:
            if not ray.wait([self._stream], timeout=timeout_s)[0]:
                return False
            self._reference = next(self._stream)
        return bool(ray.wait([self._reference], timeout=timeout_s)[0])


class _WeightStore:
    """Puts the newest weights into the store once for all workers."""

    def __init__(self) -> None:
        # A weak reference, as a later collector's buffer may have the same address.
        self._buffer: Callable[[], torch.Tensor | None] = lambda: None
        self._stamp = 0
        self._object: Any = None

    def object(self, buffer: torch.Tensor) -> Any:
        """The reference of the object that holds these stamped weights."""
        if self._buffer() is not buffer or self._stamp != stamp_of(buffer):
            self._object = ray.put(buffer.numpy())
            self._buffer, self._stamp = weakref.ref(buffer), stamp_of(buffer)
        return self._object


_weight_store = _WeightStore()


def _tensor(message: np.ndarray) -> torch.Tensor:
    """A view of the store's memory, which stays valid as long as the tensor. Ray marks it as read-only, of which torch
    warns; it is never written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(message)
