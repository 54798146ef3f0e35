"""Admits workers: in the listener's threads, checks that a peer knows the secret and is expected, and makes the pair
with it. The thread of the network transport then takes the admitted workers.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from collectx.errors import RendezvousError
from collectx.transport.base import SlotSpec
from collectx.transport.connections import enable_keepalive, set_receive_timeout
from collectx.transport.network.handshake import Endpoint, Listener, receive_hello
from collectx.transport.network.p2p import TRAINER, Pair, PairConfig
from collectx.transport.network.remote_peer import RemotePeer
from collectx.transport.peer import JoinState


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
        self._admitted: queue.SimpleQueue[tuple[RemotePeer, Connection, Pair]] = queue.SimpleQueue()
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

    def take(self) -> tuple[RemotePeer, Connection, Pair] | None:
        """Returns the next admitted worker, with connection and pair; None if it was withdrawn. Blocks."""
        os.read(self.readable, 1)
        peer, connection, pair = self._admitted.get()
        if peer.state is JoinState.PAIRING:
            return peer, connection, pair
        _reject(connection, pair)
        return None

    def _admit(self, connection: Connection, address: str) -> None:
        """Makes the pair with a peer that knows the secret, if it is an expected worker."""
        enable_keepalive(connection, self._config.timeout_s)
        hello = receive_hello(connection)
        index = hello.pop("worker", None)
        with self._lock:
            # In Python, JSON's `true` is an int.
            peer = self._workers.get(index) if type(index) is int else None
            if peer is not None and peer.state is JoinState.EXPECTED:
                peer.state = JoinState.PAIRING
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


def _reject(connection: Connection, pair: Pair) -> None:
    connection.close()
    pair.close()
