"""Admits workers: in the listener's threads, checks that a peer knows the secret and is expected, and makes the pair
with it. The thread of the network transport then takes the admitted workers.

The ports on which torch listens are filtered, because gloo and TensorPipe do not authenticate peers, and a stranger's
bytes can crash the process. A filter drops new connections while no peer is expected; open connections are not
affected.

On systems other than Linux, the ports stay open.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from collectx.errors import RendezvousError
from collectx.transport.base import SlotSpec
from collectx.transport.connections import enable_keepalive, set_receive_timeout
from collectx.transport.network.handshake import Endpoint, Listener, receive_hello
from collectx.transport.network.p2p import TRAINER, Pair, PairConfig, PendingReceive, PendingSend
from collectx.transport.peer import JoinState, Peer


@dataclass(eq=False)
class Weights:
    """The bytes of one weight version.

    Attributes:
        buffer: the bytes, stamped with `version + 1`.
        num_users: number of workers to which they are being sent.
        is_needed: whether this is the newest version of some worker, or one of the last two that were granted.
    """

    buffer: torch.Tensor
    version: int = -1
    num_users: int = 0
    is_needed: bool = False


@dataclass(eq=False)
class RemotePeer(Peer):
    """The trainer's record of a worker that it reaches over a network; see `Peer`.

    Attributes:
        info: what the worker told when it connected: host, pid, job.
        is_making_pair: whether the worker has begun to make its end of the pair.
        pair: the pair for slots and weights; None until it has been made.
        queued_before_join: functions that send earlier grants and requests, called in order when the worker joins.
        incoming: the receives that were posted, by slot.
        weights_version: the weight version that is being sent, or was sent last.
        versions: with `SlotSpec.grants_name_version`, the weights that grants name and that are still to be sent.
    """

    make_spec: Callable[[], dict[str, Any]] = dict
    info: dict[str, Any] = field(default_factory=dict)
    is_making_pair: bool = False
    pair: Pair | None = None
    queued_before_join: list[Callable[[], None]] = field(default_factory=list)
    incoming: dict[int, PendingReceive] = field(default_factory=dict)
    weights_version: int = -1
    sending: tuple[PendingSend, Weights] | None = None
    versions: deque[Weights] = field(default_factory=deque)


class Admission:
    """Listens for workers, and sends `slot_spec` and `config` to each. The other arguments are those of
    `NetworkTransport`. `readable` is a file descriptor that becomes readable when a worker can be taken."""

    def __init__(
        self,
        workers: dict[int, RemotePeer],
        slot_spec: SlotSpec,
        config: PairConfig,
        events: Callable[..., None],
        endpoint: Endpoint,
        interface: str | None,
    ):
        self._workers = workers
        self._slot_spec = slot_spec
        self._config = config
        self._events = events
        # Protects the states of workers until they have joined.
        self._lock = threading.Lock()
        self._is_closed = False
        self._admitted: queue.SimpleQueue[tuple[RemotePeer, Connection, Pair | None]] = queue.SimpleQueue()
        self.readable, self._wakeup = os.pipe()
        try:
            self._listener = Listener(endpoint, self._admit, self._refuse, interface)
        except BaseException:
            self._close_pipe()
            raise
        self.endpoint = self._listener.endpoint

    def expect(self, index: int, make_spec: Callable[[], dict[str, Any]]) -> None:
        """Lets one process of this worker join; see `Transport.expect`."""
        with self._lock:
            self._workers[index] = RemotePeer(index, make_spec=make_spec)

    def withdraw(self, peer: RemotePeer) -> None:
        """Refuses this process of a worker from now on."""
        with self._lock:
            peer.state = JoinState.GONE

    def take(self) -> tuple[RemotePeer, Connection, Pair | None] | None:
        """Returns the next admitted worker, with connection and pair; None if it was withdrawn. Without a pair, the
        worker is still starting: each message is a sign of progress, until the connection ends. Blocks."""
        os.read(self.readable, 1)
        peer, connection, pair = self._admitted.get()
        if peer.state is JoinState.PAIRING or pair is None:
            return peer, connection, pair
        _reject(connection, pair)
        return None

    def _admit(self, connection: Connection, address: str) -> None:
        """Makes the pair with a peer that knows the secret, if it is an expected worker."""
        enable_keepalive(connection, self._config.timeout_s)
        hello = receive_hello(connection)
        index, is_starting = hello.pop("worker", None), hello.pop("is_starting", False)
        with self._lock:
            # In Python, JSON's `true` is an int.
            peer = self._workers.get(index) if type(index) is int else None
            if peer is not None and peer.state is JoinState.EXPECTED:
                peer.state = JoinState.EXPECTED if is_starting else JoinState.PAIRING
            else:
                peer = None
        if peer is None:
            reason = f"worker {index} cannot join, because the run has no worker with this index. End this worker."
            if type(index) is not int:
                reason = f"a worker sent an invalid index ({index!r:.40}), so it cannot join."
            elif index in self._workers:
                reason = f"worker {index} cannot join, because another process already joined as this worker."
            connection.send_bytes(json.dumps({"refused": reason}).encode())
            raise RendezvousError(reason)
        if is_starting:
            self._admit_as(peer, connection, None)
            return
        peer.info = hello
        try:
            reply = {"spec": peer.make_spec(), "batch": self._slot_spec.to_json(), "pair": vars(self._config)}
            connection.send_bytes(json.dumps(reply).encode())
            set_receive_timeout(connection, self._config.pair_timeout_s)
            connection.recv_bytes()
            peer.is_making_pair = True
            pair = self._config.make_pair(connection, TRAINER, address)
        except Exception as error:
            with self._lock:
                if peer.state is JoinState.PAIRING:
                    peer.state, peer.is_making_pair = JoinState.EXPECTED, False
            raise RendezvousError(f"the connection of worker {peer.index} failed ({error!r})") from error
        self._admit_as(peer, connection, pair)

    def _admit_as(self, peer: RemotePeer, connection: Connection, pair: Pair | None) -> None:
        with self._lock:
            if not self._is_closed:
                self._admitted.put((peer, connection, pair))
                os.write(self._wakeup, b"\0")
                return
        _reject(connection, pair)

    def _refuse(self, address: str, reason: str) -> None:
        if not self._is_closed:
            self._events("peer_refused", address=address, reason=reason)

    def stop(self) -> None:
        """Admits no more workers. Workers that are making their pairs complete them."""
        with self._lock:
            self._is_closed = True
            for peer in self._workers.values():
                if peer.state is JoinState.EXPECTED:
                    peer.state = JoinState.GONE

    def close(self) -> None:
        """Stops listening, and rejects the workers that were not taken. Call `stop` before."""
        self._listener.close()
        while not self._admitted.empty():
            _reject(*self._admitted.get()[1:])
        self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self.readable)
        os.close(self._wakeup)


def _reject(connection: Connection, pair: Pair | None) -> None:
    connection.close()
    if pair is not None:
        pair.close()


T = TypeVar("T")

# From Linux's asm-generic/socket.h; Python's socket module lacks them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_RETURN = 0x06
_libc = ctypes.CDLL(None)


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class ListenerFilter:
    """A filter on the listening sockets of a library. Blocks new connections, except between `allow` and `block`.
    Thread-safe. `descriptors` are the sockets' file descriptors. A descriptor that is later reused for another file is
    left alone."""

    def __init__(self, descriptors: Collection[int]):
        self._inodes = {descriptor: _inode(descriptor) for descriptor in descriptors}
        self._num_expected = 0
        self._lock = threading.Lock()
        self._set_allowed(False)

    def allow(self) -> None:
        """Allows new connections; each call must be matched by one `block`."""
        with self._lock:
            self._num_expected += 1
            self._set_allowed(True)

    def block(self) -> None:
        """Ends one `allow`. After the last one, the kernel drops new connections."""
        with self._lock:
            self._num_expected -= 1
            self._set_allowed(self._num_expected > 0)

    def _set_allowed(self, is_allowed: bool) -> None:
        # The BPF program keeps no byte of any packet.
        drop = _Program(1, ctypes.pointer(_Instruction(_RETURN, 0, 0, 0)))
        option, value = (_SO_DETACH_FILTER, ctypes.c_int(0)) if is_allowed else (_SO_ATTACH_FILTER, drop)
        for descriptor, inode in self._inodes.items():
            if inode is None or _inode(descriptor) != inode:
                continue
            # A Python socket object would change the blocking mode of the library's socket.
            _libc.setsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.sizeof(value))


def filter_listeners(
    make: Callable[[], T], is_of_library: Callable[[int], bool] = lambda descriptor: True
) -> tuple[T, ListenerFilter]:
    """Calls `make`; returns its result, and a filter on the sockets that began to listen during the call.
    `is_of_library` says whether a descriptor may be the library's, as other threads may begin to listen during the call
    too."""
    before = _listening_descriptors()
    result = make()
    return result, ListenerFilter(list(filter(is_of_library, _listening_descriptors() - before)))


def _inode(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def _listening_descriptors() -> set[int]:
    if sys.platform != "linux":
        return set()
    return {descriptor for name in os.listdir("/proc/self/fd") if _is_listening(descriptor := int(name))}


def _is_listening(descriptor: int) -> bool:
    listens, size = ctypes.c_int(0), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    _libc.getsockopt(descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(listens), ctypes.byref(size))
    return bool(listens.value)
