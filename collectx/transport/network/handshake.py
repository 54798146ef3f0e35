"""How a worker on another host finds the trainer, and how both make sure of each other: one TCP connection, opened by
the worker, on which each proves that it knows the run's secret before anything else is read.

    trainer                                         worker
    PROTOCOL, nonce a        ---------------------->
                             <----------------------  nonce b, HMAC(secret, "worker" a b)
    HMAC(secret, "trainer" b a) ------------------->
    afterwards: messages with a length before each

The proofs are HMAC-SHA256 (RFC 2104) over fresh nonces, so neither the secret nor anything that could be said again is
ever sent. What follows is neither encrypted nor signed: the secret keeps strangers out, it does not hide frames.
Must not know what is said afterwards.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from collectx.errors import RendezvousError
from collectx.transport.connections import set_receive_timeout
from collectx.transport.network.addresses import listening_sockets, plain_address

PROTOCOL = b"collectx-1\n"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
# A peer that says nothing must not hold a thread for ever: how long all of the proofs may take, and the first words
# after them; and how many peers may be about to prove themselves.
_HANDSHAKE_S = 10.0
_MOST_HANDSHAKES = 64
# At most so many refusals are reported in so many seconds.
_MOST_REFUSALS, _REFUSALS_S = 20, 60.0
_FIRST_WORDS_BYTES = 65536
_CONNECT_S = 3.0
_PAUSE_S = 0.25
_REFUSED = (
    "The trainer has ended, or an address is not its host's alone, as that of lo: choose a network that both hosts are "
    "on with backend.interface."
)
_SILENT = (
    "A firewall between the two, or no network that both are on: choose another with backend.interface, or a port that "
    "is open with backend.port."
)


@dataclass(frozen=True)
class Endpoint:
    """Where the trainer listens.

    Attributes:
        addresses: IP addresses of the trainer's host, best first.
        port: TCP port.
        secret: what both must know.
    """

    addresses: tuple[str, ...]
    port: int
    secret: bytes = field(repr=False)


class Listener:
    """The trainer's listening sockets: one thread accepts at each, another one handles each connection.

    Args:
        addresses: of this host. Loopback addresses alone: nobody else can connect. Otherwise every interface listens,
            unless `interface` says which, as a worker's way to this host is not known before it comes.
        port: the TCP port; 0 lets the system choose.
        secret: see `Endpoint`.
        greet: called in the greeting thread with the connection of a peer that knows the secret, and this host's
            address as the peer sees it. What it raises ends the connection, and is a reason for `refused`.
        refused: called in the greeting thread with the address of a peer that was not let in, and why; of many peers
            with those of some, and with the number of the others.
        interface: the only one to listen on, whose addresses `addresses` are.

    Attributes:
        endpoint: what workers need.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        port: int,
        secret: bytes,
        greet: Callable[[Connection, str], None],
        refused: Callable[[str, str], None],
        interface: str | None = None,
    ):
        self._greet = greet
        self._refused = refused
        self._secret = secret
        self._servers = listening_sockets(addresses, port, interface)
        self._closed = False
        self._handshakes = threading.Semaphore(_MOST_HANDSHAKES)
        self._lock = threading.Lock()
        self._refused_since_s, self._num_refused = time.monotonic(), 0
        self.endpoint = Endpoint(tuple(addresses), self._servers[0].getsockname()[1], secret)
        for server in self._servers:
            server.settimeout(None)  # whatever `socket.setdefaulttimeout` says
            threading.Thread(target=self._accept, args=(server,), name="collectx-listener", daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                peer, address = server.accept()
            except OSError:
                if self._closed:
                    return
                # Too many open files, perhaps those of strangers, who are not kept for long.
                time.sleep(_PAUSE_S)
                continue
            # The others wait in the system's queue.
            self._handshakes.acquire()
            threading.Thread(
                target=self._receive, args=(peer, address[0]), name="collectx-greeting", daemon=True
            ).start()

    def _receive(self, peer: socket.socket, address: str) -> None:
        try:
            _prove_to_worker(peer, self._secret)
        except (OSError, RendezvousError) as error:
            peer.close()
            self._refuse(address, str(error))
            return
        finally:
            self._handshakes.release()
        connection, here = _framed(peer)
        try:
            self._greet(connection, here)
        except Exception as error:
            # Whatever it says, the others' run goes on.
            connection.close()
            self._refuse(address, str(error) or type(error).__name__)

    def _refuse(self, address: str, reason: str) -> None:
        with self._lock:
            now_s, before = time.monotonic(), 0
            if now_s >= self._refused_since_s + _REFUSALS_S:
                before = max(0, self._num_refused - _MOST_REFUSALS)
                self._refused_since_s, self._num_refused = now_s, 0
            self._num_refused += 1
            is_reported = self._num_refused <= _MOST_REFUSALS
        if is_reported:
            others = f" (before, {before} more were refused for some reason)" if before else ""
            self._refused(plain_address(address), f"{reason}{others}")

    def close(self) -> None:
        """Listens no longer. Connections stay."""
        self._closed = True
        for server in self._servers:
            # Closing alone would leave the thread in `accept`.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()


def connect(endpoint: Endpoint, timeout_s: float, limit: str) -> tuple[Connection, str]:
    """The worker's way to the trainer: tries each address in turn until one answers and knows the secret. Where every
    one refuses, nobody listens any more, and waiting would not help.

    Returns:
        The connection, and this host's address on that way.

    Raises:
        RendezvousError: nobody answered within `timeout_s`, the reason for which `limit` is; says what each address
            answered.
    """
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
            return _framed(peer)
        is_refused = refusals == len(endpoint.addresses)
        if is_refused or time.monotonic() > deadline:
            tried = "" if is_refused else f" within {timeout_s:g} s ({limit})"
            said = "; ".join(f"{address} port {endpoint.port}: {answer}" for address, answer in answers.items())
            advice = _REFUSED if is_refused else _SILENT
            raise RendezvousError(f"{socket.gethostname()} could not reach the trainer{tried}: {said}. {advice}")
        time.sleep(_PAUSE_S)


def receive_hello(connection: Connection) -> dict[str, Any]:
    """What a peer says first, as soon as it is greeted.

    Raises:
        RendezvousError: it says nothing, or something else than a JSON object.
    """
    set_receive_timeout(connection, _HANDSHAKE_S)
    if not connection.poll(_HANDSHAKE_S):
        raise RendezvousError(f"it knows the secret, and then said nothing for {_HANDSHAKE_S:g} s")
    try:
        words = json.loads(connection.recv_bytes(_FIRST_WORDS_BYTES))
    except BlockingIOError as error:
        raise RendezvousError(
            f"it knows the secret, but its first message was not complete after {_HANDSHAKE_S:g} s"
        ) from error
    except (ValueError, RecursionError, EOFError, OSError) as error:
        raise RendezvousError(f"it knows the secret, and is no worker of collectx ({error!r})") from error
    if not isinstance(words, dict):
        raise RendezvousError("it knows the secret, and is no worker of collectx")
    return words


def new_secret() -> bytes:
    """A secret for one run."""
    return secrets.token_bytes(32)


def _prove_to_worker(peer: socket.socket, secret: bytes) -> None:
    deadline_s = _begin(peer)
    mine = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(PROTOCOL + mine)
    theirs = _exactly(peer, _NONCE_BYTES, deadline_s)
    if not hmac.compare_digest(_exactly(peer, _PROOF_BYTES, deadline_s), _proof(secret, b"worker", mine, theirs)):
        raise RendezvousError("it does not know the secret of this run")
    peer.sendall(_proof(secret, b"trainer", theirs, mine))


def _prove_to_trainer(peer: socket.socket, secret: bytes) -> None:
    deadline_s = _begin(peer)
    if _exactly(peer, len(PROTOCOL), deadline_s) != PROTOCOL:
        raise RendezvousError("who listens there is no trainer of this version of collectx")
    theirs = _exactly(peer, _NONCE_BYTES, deadline_s)
    mine = secrets.token_bytes(_NONCE_BYTES)
    peer.sendall(mine + _proof(secret, b"worker", theirs, mine))
    if not hmac.compare_digest(_exactly(peer, _PROOF_BYTES, deadline_s), _proof(secret, b"trainer", mine, theirs)):
        raise RendezvousError("who listens there is the trainer of another run")


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")


def _begin(peer: socket.socket) -> float:
    """Until when the handshake may go on."""
    peer.settimeout(_HANDSHAKE_S)
    return time.monotonic() + _HANDSHAKE_S


def _exactly(peer: socket.socket, count: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < count:
        rest_s = deadline_s - time.monotonic()
        if rest_s <= 0.0:
            raise RendezvousError(f"it did not prove within {_HANDSHAKE_S:g} s that it knows the secret of this run")
        peer.settimeout(rest_s)
        more = peer.recv(count - len(data))
        if not more:
            raise RendezvousError(
                "it closed the connection: it does not know the secret of this run, or is no collectx"
            )
        data += more
    return data


def _framed(peer: socket.socket) -> tuple[Connection, str]:
    """The connection for messages, and this host's address on it."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    address = plain_address(peer.getsockname()[0])
    return Connection(peer.detach()), address
