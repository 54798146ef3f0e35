"""The authenticated control connection: a worker connects to the trainer by TCP, and each proves that it knows the
run's secret before anything else is read.

    trainer                                         worker
    PROTOCOL, nonce a        ---------------------->
                             <----------------------  nonce b, HMAC(secret, "worker" a b)
    HMAC(secret, "trainer" b a) ------------------->
    afterwards: messages, each after its length

The proofs are HMAC-SHA256 (RFC 2104) over fresh nonces, so the secret is not sent, and a proof cannot be replayed.
Later messages are not encrypted: the secret keeps strangers out, but does not hide frames.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from collectx import progress
from collectx.errors import RendezvousError
from collectx.transport.connections import set_receive_timeout
from collectx.transport.network.addresses import listening_sockets, plain_address

PROTOCOL = b"collectx-1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
# Seconds that the proofs may take, and then the first message; and the number of peers that may prove themselves at a
# time. So silent peers exhaust neither threads nor file descriptors. While others wait, a peer must answer the
# trainer's nonce within `_SILENT_S`: a worker answers at once.
_HANDSHAKE_S = 10.0
_MAX_HANDSHAKES = 64
_SILENT_S = 0.25
# At most this many refusals are reported in this many seconds.
_MAX_REFUSALS, _REFUSALS_S = 20, 60.0
_HELLO_BYTES = 65536
_CONNECT_S = 3.0
_PAUSE_S = 0.25
_CLOSE_S = 5.0
_REFUSED = (
    "Either the trainer has ended, or this address exists on every host, like that of lo. Choose a network that both "
    "hosts are on with backend.interface."
)
_SILENT = (
    "Either a firewall is between the two, or they share no network. Choose another network with backend.interface, "
    "or an open port with backend.port."
)


@dataclass(frozen=True)
class Endpoint:
    """The address of the trainer, and the secret of the run.

    Attributes:
        addresses: IP addresses of the trainer's host, best first.
        secret: what a worker and the trainer must know.
    """

    addresses: tuple[str, ...]
    port: int
    secret: bytes = field(repr=False)


class Listener:
    """The trainer's listening sockets. A thread accepts on each, and a thread handles each connection until it is
    handed over. `close` ends all threads. `endpoint` is what workers need to connect; contains the actual port. Raises
    `ConfigError` if the port is taken.

    Args:
        endpoint: where to listen: on these addresses alone if they are loopback addresses, so that other hosts cannot
            connect, or if `interface` is set; otherwise on every interface, as the network of a worker is not known.
            Port 0: a free port.
        on_connect: called in a thread with the connection of a peer that knows the secret, and this host's address as
            the peer sees it. If it raises, the connection is closed and the peer refused.
        on_refuse: called in a thread with the address of a refused peer, and the reason. Of many refused peers, only
            some are reported, with the number of the others.
        interface: the name of the interface with these addresses, to listen only there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_connect: Callable[[Connection, str], None],
        on_refuse: Callable[[str, str], None],
        interface: str | None = None,
    ):
        self._on_connect = on_connect
        self._on_refuse = on_refuse
        self._servers = listening_sockets(endpoint.addresses, endpoint.port, interface)
        self._closed = False
        self._handshakes = threading.Semaphore(_MAX_HANDSHAKES)
        self._lock = threading.Lock()
        # The threads of unfinished handshakes, with their connections.
        self._peers: dict[threading.Thread, socket.socket] = {}
        # The peers that have not answered a nonce, with the time at which it was sent.
        self._queried: dict[socket.socket, float] = {}
        self._refused_since_s, self._num_refused = time.monotonic(), 0
        self.endpoint = replace(endpoint, port=self._servers[0].getsockname()[1])
        self._threads = [
            threading.Thread(target=self._accept, args=(server,), name="collectx-listener", daemon=True)
            for server in self._servers
        ]
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.settimeout(None)  # regardless of `socket.setdefaulttimeout`
            thread.start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                peer, address = server.accept()
            except OSError:
                if self._closed:
                    return
                # Too many open files, perhaps of strangers, whose connections are closed soon.
                time.sleep(_PAUSE_S)
                continue
            # Further peers wait in the kernel's queue.
            while not self._handshakes.acquire(timeout=_SILENT_S):
                self._end_silent()
            thread = threading.Thread(
                target=self._run_handshake, args=(peer, address[0]), name="collectx-handshake", daemon=True
            )
            with self._lock:
                if self._closed:
                    peer.close()
                    return
                try:
                    # A duplicate, because the descriptor of `peer` may be closed and reused before the thread ends.
                    self._peers[thread] = peer.dup()
                    thread.start()
                    continue
                except (OSError, RuntimeError):  # too many open files, or too many threads
                    if duplicate := self._peers.pop(thread, None):
                        duplicate.close()
            peer.close()
            self._handshakes.release()
            time.sleep(_PAUSE_S)

    def _run_handshake(self, peer: socket.socket, address: str) -> None:
        try:
            self._handshake(peer, address)
        finally:
            with self._lock:
                self._peers.pop(threading.current_thread()).close()

    def _end_silent(self) -> None:
        """Ends the handshakes of peers that sent nothing for `_SILENT_S`."""
        with self._lock:
            until_s = time.monotonic() - _SILENT_S
            queried = [peer for peer, since_s in self._queried.items() if since_s < until_s]
            for peer in set(queried).difference(wait(queried, 0.0)):
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    def _prove(self, peer: socket.socket) -> None:
        deadline_s = time.monotonic() + _HANDSHAKE_S
        mine = _ask(peer)
        with self._lock:
            self._queried[peer] = time.monotonic()
        try:
            _prove_to_worker(peer, self.endpoint.secret, mine, deadline_s)
        finally:
            with self._lock:
                del self._queried[peer]

    def _handshake(self, peer: socket.socket, address: str) -> None:
        try:
            self._prove(peer)
        except (OSError, RendezvousError) as error:
            peer.close()
            self._refuse(address, str(error))
            return
        finally:
            self._handshakes.release()
        connection, here = _message_connection(peer)
        try:
            self._on_connect(connection, here)
        except Exception as error:
            # The messages of one peer must not end the run.
            connection.close()
            self._refuse(address, str(error) or type(error).__name__)

    def _refuse(self, address: str, reason: str) -> None:
        with self._lock:
            now_s, num_skipped = time.monotonic(), 0
            if now_s >= self._refused_since_s + _REFUSALS_S:
                num_skipped = max(0, self._num_refused - _MAX_REFUSALS)
                self._refused_since_s, self._num_refused = now_s, 0
            self._num_refused += 1
            is_reported = self._num_refused <= _MAX_REFUSALS
        if is_reported:
            others = f" (before, {num_skipped} more were refused)" if num_skipped else ""
            self._on_refuse(plain_address(address), f"{reason}{others}")

    def close(self) -> None:
        """Stops listening, ends unfinished handshakes and joins all threads. Other connections stay open. Blocks for at
        most `_CLOSE_S`: a thread in which a library is connecting to a lost peer ends later, at its timeout."""
        self._closed = True
        for server in self._servers:
            # `close` alone would leave the thread in `accept`.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        deadline_s = time.monotonic() + _CLOSE_S
        # First only stops reading, so that a worker can complete the pair that it is making. Then stops both: gloo
        # would wait for the connection of a worker that failed, until the timeout.
        for how, until_s in ((socket.SHUT_RD, deadline_s - _CLOSE_S / 2), (socket.SHUT_RDWR, deadline_s)):
            with self._lock:
                threads = [*self._threads, *self._peers]
                for peer in self._peers.values():
                    with contextlib.suppress(OSError):
                        peer.shutdown(how)
            for thread in threads:
                thread.join(max(0.0, until_s - time.monotonic()))


def connect(endpoint: Endpoint, timeout_s: float, limit: str) -> tuple[Connection, str]:
    """Connects to the trainer: tries each address in turn until a process answers that knows the secret. Gives up at
    once if every address refuses, because no trainer is listening then. Returns the connection, and this host's address
    on it. Raises `RendezvousError` if no address answered within `timeout_s` seconds, a time that the text `limit`
    explains; the message lists the answer of each address."""
    deadline = time.monotonic() + timeout_s
    answers: dict[str, str] = {}
    while True:
        refusals = 0
        for address in endpoint.addresses:
            try:
                peer = socket.create_connection((address, endpoint.port), timeout=_CONNECT_S)
            except OSError as error:
                answers[address] = str(error) or type(error).__name__
                refusals += isinstance(error, ConnectionRefusedError)
                continue
            try:
                _prove_to_trainer(peer, endpoint.secret)
            except (OSError, RendezvousError) as error:
                answers[address] = str(error)
                peer.close()
                continue
            return _message_connection(peer)
        is_refused = refusals == len(endpoint.addresses)
        if is_refused or time.monotonic() > deadline:
            tried = "" if is_refused else f" within {timeout_s:g} s ({limit})"
            results = ", ".join(f"{address} port {endpoint.port} ({answer})" for address, answer in answers.items())
            advice = _REFUSED if is_refused else _SILENT
            raise RendezvousError(f"{socket.gethostname()} could not reach the trainer{tried} at {results}. {advice}")
        time.sleep(_PAUSE_S)


@contextlib.contextmanager
def telling_progress(endpoint: Endpoint, worker: int, timeout_s: float) -> Iterator[None]:
    """Tells the trainer, over a connection of its own, that this process of a worker imports modules in the block,
    before it joins. Raises as `connect` does; `timeout_s` is `collector.start_timeout_s`."""
    connection, _ = connect(endpoint, *join_limit(timeout_s))
    told_s = 0.0

    def tell(name: str) -> None:
        nonlocal told_s
        if (now_s := time.monotonic()) >= told_s + min(1.0, 0.25 * timeout_s):
            told_s = now_s
            # A trainer that is gone refuses the worker later.
            with contextlib.suppress(OSError):
                connection.send_bytes(b"")

    with connection, progress.counting_imports(tell):
        connection.send_bytes(json.dumps({"worker": worker, "is_starting": True}).encode())
        yield


def join_limit(timeout_s: float) -> tuple[float, str]:
    """Returns how long a worker may try to reach the trainer, in seconds, and what messages call this time, by
    `collector.start_timeout_s`. The worker gives up before the trainer does, so that the trainer can report the
    reason."""
    return 0.75 * timeout_s, f"three quarters of collector.start_timeout_s={timeout_s:g}"


def receive_hello(connection: Connection) -> dict[str, Any]:
    """Returns the first message of a peer. Blocks for up to 10 s. Raises `RendezvousError` if no message came in time,
    or it is not a JSON object."""
    set_receive_timeout(connection, _HANDSHAKE_S)
    if not connection.poll(_HANDSHAKE_S):
        raise RendezvousError(f"it knows the secret, but sent nothing for {_HANDSHAKE_S:g} s")
    try:
        hello = json.loads(connection.recv_bytes(_HELLO_BYTES))
    except BlockingIOError as error:
        raise RendezvousError(
            f"it knows the secret, but its first message was not complete after {_HANDSHAKE_S:g} s"
        ) from error
    except (ValueError, RecursionError, EOFError, OSError) as error:
        raise RendezvousError(f"it knows the secret, but is not a collectx worker ({error!r})") from error
    if not isinstance(hello, dict):
        raise RendezvousError("it knows the secret, but is not a collectx worker")
    return hello


def new_secret() -> bytes:
    return secrets.token_bytes(32)


def _ask(peer: socket.socket) -> bytes:
    peer.settimeout(_HANDSHAKE_S)
    mine = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(PROTOCOL + mine)
    return mine


def _prove_to_worker(peer: socket.socket, secret: bytes, mine: bytes, deadline_s: float) -> None:
    theirs = _receive_exactly(peer, _NONCE_BYTES, deadline_s)
    if not hmac.compare_digest(
        _receive_exactly(peer, _PROOF_BYTES, deadline_s), _proof(secret, b"worker", mine, theirs)
    ):
        raise RendezvousError("it does not know the secret of this run")
    peer.sendall(_proof(secret, b"trainer", theirs, mine))


def _prove_to_trainer(peer: socket.socket, secret: bytes) -> None:
    deadline_s = time.monotonic() + _HANDSHAKE_S
    if _receive_exactly(peer, len(PROTOCOL), deadline_s) != PROTOCOL:
        raise RendezvousError("the process listening there is not a trainer of this collectx version")
    theirs = _receive_exactly(peer, _NONCE_BYTES, deadline_s)
    mine = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(mine + _proof(secret, b"worker", theirs, mine))
    if not hmac.compare_digest(
        _receive_exactly(peer, _PROOF_BYTES, deadline_s), _proof(secret, b"trainer", mine, theirs)
    ):
        raise RendezvousError("the process listening there is the trainer of another run")


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")


def _receive_exactly(peer: socket.socket, count: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < count:
        rest_s = deadline_s - time.monotonic()
        if rest_s <= 0.0:
            raise RendezvousError(f"it did not prove within {_HANDSHAKE_S:g} s that it knows the secret of this run")
        peer.settimeout(rest_s)
        more = peer.recv(count - len(data))
        if not more:
            raise RendezvousError(
                "it closed the connection: it does not know the secret of this run, or is not a collectx process"
            )
        data += more
    return data


def _message_connection(peer: socket.socket) -> tuple[Connection, str]:
    """Returns the connection for messages, and this host's address on it."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    address = plain_address(peer.getsockname()[0])
    return Connection(peer.detach()), address
