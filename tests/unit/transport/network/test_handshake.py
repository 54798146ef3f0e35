"""The handshake of trainer and workers, and bytes of strangers, over real sockets."""

import contextlib
import hmac
import json
import re
import socket
import struct
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from user_code.toyworker import SECRET, Toys, batch_spec

from collectx.errors import ConfigError, RendezvousError
from collectx.transport.network import addresses, handshake
from collectx.transport.network.addresses import local_addresses
from collectx.transport.network.handshake import PROTOCOL, Endpoint, Listener, connect
from collectx.transport.network.transport import NetworkTransport
from collectx.transport.supervisor import Supervisor


class RecordingListener(Listener):
    """Keeps the first message of each peer, and the refusals."""

    def __init__(self, *addresses, interface=None):
        self.greeted, self.refusals = [], []
        endpoint = Endpoint(addresses, 0, SECRET)
        super().__init__(endpoint, self._record, lambda *peer: self.refusals.append(peer), interface)

    def _record(self, connection, address):
        self.greeted.append((connection, address, connection.recv_bytes()))

    def close(self):
        super().close()
        for connection, *_ in self.greeted:
            connection.close()


@pytest.fixture
def listen():
    with contextlib.ExitStack() as stack:
        yield lambda *addresses, **interface: stack.enter_context(
            contextlib.closing(RecordingListener(*addresses or ("127.0.0.1",), **interface))
        )


def say_hello(port, *addresses, secret=SECRET, timeout_s=60.0):
    connection, address = connect(Endpoint(addresses or ("127.0.0.1",), port, secret), timeout_s, "knob=7")
    with connection:
        connection.send_bytes(b"hello")
    return address


ANY = ("192.0.2.1", "127.0.0.1")  # with an address besides loopback, it listens on all on one socket


@pytest.mark.parametrize(
    ("listening", "tried", "address"),
    [
        (["127.0.0.1"], ["::1", "127.0.0.1"], "127.0.0.1"),  # the next where one does not answer
        (ANY, ["127.0.0.1"], "127.0.0.1"),  # plain, though on that socket it is ::ffff:127.0.0.1
        (ANY, ["::1"], "::1"),
    ],
)
def test_a_worker_that_knows_the_secret_is_greeted_and_no_other(listen, wait_until, listening, tried, address):
    listener = listen(*listening)
    with pytest.raises(
        RendezvousError, match=rf"within 0 s \(knob=7\) at .*{address} port \d+ \(it closed the connection"
    ):
        say_hello(listener.endpoint.port, *tried, secret=b"wrong", timeout_s=0.0)
    assert say_hello(listener.endpoint.port, *tried) == address
    wait_until(lambda: listener.greeted and listener.refusals)
    assert listener.greeted[0][1:] == (address, b"hello")
    assert listener.refusals == [(address, "it does not know the secret of this run")]
    assert SECRET.decode() not in repr(listener.endpoint)  # which may be logged


@pytest.mark.parametrize("interface", [None, "lo"])
def test_loopback_alone_is_not_reached_from_outside(listen, interface):
    here = ("127.0.0.1",) if interface is None else local_addresses(interface)
    port = listen(*here, interface=interface).endpoint.port
    for address in here:
        assert say_hello(port, address) == address
    addresses = [address for address in local_addresses(None) if address != "127.0.0.1"]
    if not addresses:
        pytest.skip("this host has no address besides loopback")
    with pytest.raises(RendezvousError, match="could not reach the trainer"):
        say_hello(port, addresses[0], timeout_s=0.0)


def test_an_interface_is_listened_on_alone(listen):
    addresses = [address for address in local_addresses(None) if address != "127.0.0.1"]
    if not addresses:
        pytest.skip("this host has no address besides loopback")
    interface = next(
        name for name, entries in psutil.net_if_addrs().items() if addresses[0] in [entry.address for entry in entries]
    )
    port = listen(*local_addresses(interface), interface=interface).endpoint.port
    assert say_hello(port, addresses[0]) == addresses[0]
    with pytest.raises(RendezvousError, match="could not reach the trainer"):
        say_hello(port, "127.0.0.1", timeout_s=0.0)


# --- bytes of strangers ---


def exactly(peer, count):
    data = b""
    while len(data) < count and (more := peer.recv(count - len(data))):
        data += more
    return data


def proof(role, *nonces):
    return hmac.digest(SECRET, role + b"".join(nonces), "sha256")


def framed(message):
    return struct.pack("!i", len(message)) + message


def challenged(port, answer, count=1000):
    """Answers a listener's challenge by `answer(nonce)`; the first `count` bytes of what the listener says to that, or
    all until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(answer(exactly(peer, len(PROTOCOL) + 32)[len(PROTOCOL) :]))
        with contextlib.suppress(OSError):  # it is closed already
            peer.shutdown(socket.SHUT_WR)
        return exactly(peer, count)
    return b""


MINE = b"m" * 32
# Anything but the number of the one worker that is expected.
VALUES = st.one_of(st.none(), st.booleans(), st.integers().filter(bool), st.floats(), st.text(max_size=3), st.just([0]))
JSON = st.one_of(VALUES, st.dictionaries(st.sampled_from(["worker", "host"]), VALUES)).map(
    lambda it: json.dumps(it).encode()
)


def test_nonsense_is_refused_before_and_after_the_proof(wait_until, monkeypatch):
    monkeypatch.setattr(handshake, "_MAX_REFUSALS", 1000)
    reasons = []
    known = (
        "it closed the connection|it does not know the secret|it knows the secret, but|worker .*cannot join|a worker"
    )
    with Toys("gloo", batch_spec(1), events=lambda name, address, reason: reasons.append(reason)) as toys:

        @given(st.booleans(), st.one_of(st.binary(max_size=99), JSON.map(framed)))
        @example(True, framed(b"[" * 60_000))
        @example(True, framed(b'{"worker": false}'))
        @example(True, struct.pack("!i", 2**31 - 1))
        @settings(max_examples=8)
        def check(knows_the_secret, words):
            def answer(nonce):
                return MINE + proof(b"worker", nonce, MINE) + words if knows_the_secret else words

            reasons.clear()
            challenged(toys.transport.endpoint.port, answer)
            wait_until(lambda: reasons)
            assert [reason for reason in reasons if re.match(known, reason)] == reasons

        check()


def test_strangers_hold_few_threads_for_a_short_time_and_do_not_fill_the_log(listen, wait_until, monkeypatch):
    for name, value in {"_HANDSHAKE_S": 1.0, "_MAX_HANDSHAKES": 3, "_MAX_REFUSALS": 4}.items():
        monkeypatch.setattr(handshake, name, value)
    listener, num_proving, done = listen(), [], threading.Event()

    def count():
        while not done.wait(0.01):
            num_proving.append(sum(thread.name == "collectx-handshake" for thread in threading.enumerate()))

    counting = threading.Thread(target=count)
    counting.start()
    with contextlib.ExitStack() as stack:
        stack.callback(counting.join)
        stack.callback(done.set)
        place = "127.0.0.1", listener.endpoint.port
        for _ in range(6):
            stack.enter_context(socket.create_connection(place))
        say_hello(place[1])
        wait_until(lambda: len(listener.refusals) >= 4)
        for _ in range(3):
            challenged(place[1], lambda nonce: b"")
    assert (max(num_proving), len(listener.refusals)) == (3, 4)
    assert not any("before" in reason for _, reason in listener.refusals)
    monkeypatch.setattr(handshake, "_REFUSALS_S", 0.0)
    for count in (5, 6):
        challenged(place[1], lambda nonce: b"")
        wait_until(lambda count=count: len(listener.refusals) == count)
    assert re.search(r" \(before, \d+ more were refused\)$", listener.refusals[4][1])
    assert "before" not in listener.refusals[5][1]
    monkeypatch.setattr(handshake, "_REFUSALS_S", 60.0)
    for _ in range(5):
        challenged(place[1], lambda nonce: b"")
    wait_until(lambda: len(listener.refusals) >= 9)
    assert len(listener.refusals) == 9


def test_many_silent_strangers_keep_no_worker_out(listen, monkeypatch):
    monkeypatch.setattr(handshake, "_SILENT_S", 0.02)
    listener = listen()
    place = "127.0.0.1", listener.endpoint.port
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            peer = stack.enter_context(socket.socket())
            peer.setblocking(False)
            peer.connect_ex(place)
        began_s = time.monotonic()
        say_hello(place[1])
        # Each of them may be silent for 10 s, 64 at a time.
        assert time.monotonic() - began_s < 10.0


def test_a_peer_for_whom_no_thread_can_start_may_come_again(listen, within, wait_until, monkeypatch):
    """`RLIMIT_NPROC` limits threads."""
    failures = []

    class Thread(threading.Thread):
        def start(self):
            if self.name == "collectx-handshake" and not failures:
                failures.append(self)
                raise RuntimeError("can't start new thread")
            super().start()

    within(handshake, "threading", Thread=Thread)
    monkeypatch.setattr(handshake, "_MAX_HANDSHAKES", 1)
    listener = listen()
    with pytest.raises(RendezvousError, match=r"closed the connection|Connection reset"):
        say_hello(listener.endpoint.port, timeout_s=0.0)
    assert say_hello(listener.endpoint.port) == "127.0.0.1"
    wait_until(lambda: listener.greeted)
    assert len(failures) == 1


def test_all_of_a_handshake_has_one_deadline(listen, wait_until, monkeypatch):
    monkeypatch.setattr(handshake, "_HANDSHAKE_S", 0.5)
    listener, began, count = listen(), time.monotonic(), 0
    with socket.create_connection(("127.0.0.1", listener.endpoint.port)) as peer:
        while not listener.refusals:
            if time.monotonic() > began + 0.1 * count:
                count += 1
                with contextlib.suppress(OSError):
                    peer.send(b"x")
    assert count < 30


NONCE = b"n" * 32


@pytest.mark.parametrize(
    ("greeting", "answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request", b"", "not a trainer of this collectx version"),
        (PROTOCOL + NONCE, b"", "it closed"),
        (PROTOCOL + NONCE, b"x" * 32, "the trainer of another run"),
        (PROTOCOL + NONCE, None, "the trainer of another run"),  # the worker's own proof
    ],
)
def test_a_listener_that_does_not_know_the_secret_is_not_trusted(greeting, answer, message):
    """A worker says nothing more to it, and never the secret."""
    heard = []

    def pretend(server):
        peer, _ = server.accept()
        with peer, contextlib.suppress(ConnectionError):
            peer.sendall(greeting)
            heard.append(exactly(peer, 64))
            peer.sendall(heard[0][32:] if answer is None else answer)
            peer.shutdown(socket.SHUT_WR)
            heard.append(exactly(peer, 64))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=pretend, args=(server,))
        thread.start()
        with pytest.raises(RendezvousError, match=message):
            say_hello(server.getsockname()[1], timeout_s=0.0)
        thread.join(60)
    assert SECRET not in b"".join(heard)
    assert heard[1:] in ([], [b""])


def test_an_answer_is_refused_the_second_time(listen, wait_until):
    listener, answers = listen(), []

    def answer(nonce):
        answers.append(MINE + proof(b"worker", nonce, MINE) + framed(b"hello"))
        return answers[0]

    assert len(challenged(listener.endpoint.port, answer, 32)) == 32
    assert challenged(listener.endpoint.port, answer) == b""
    wait_until(lambda: listener.refusals and listener.greeted)
    assert len(listener.greeted) == 1


# --- the network ---


def test_a_port_that_is_taken_is_a_configuration_error_and_leaves_nothing_open(listen):
    port, supervisor = listen().endpoint.port, Supervisor(60.0, 60.0, 60.0, str)
    endpoint, open_before = Endpoint(("127.0.0.1",), port, SECRET), psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(
            ConfigError, match=rf"^backend\.port={port} cannot be used: .*Choose another port, or backend.port=null"
        ):
            NetworkTransport(batch_spec(1), supervisor, endpoint, timeout_s=60.0)
    assert psutil.Process().num_fds() <= open_before  # other tests' may be collected meanwhile
    supervisor.close()


def test_a_worker_that_finds_nobody_says_where_it_looked():
    with socket.socket(socket.AF_INET6) as taken:  # which no other process can take meanwhile
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind(("::", 0))
        port, began = taken.getsockname()[1], time.monotonic()
        with pytest.raises(RendezvousError) as caught:
            say_hello(port, "127.0.0.1", "::1")
        assert time.monotonic() - began < 50
    assert re.search(rf"{re.escape(socket.gethostname())} could not reach the trainer", str(caught.value))
    for address in ("127.0.0.1", "::1"):
        assert f"{address} port {port} (" in str(caught.value)
    assert "backend.interface" in str(caught.value)


NETWORKS = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["fe80::2%eth0", "fd00::2", "10.0.0.2"],
    "ib0": ["10.1.0.2"],
    "down": ["10.2.0.2"],
    "six": ["fd01::2"],
    "local": ["fe80::3%local"],
}


@pytest.mark.parametrize(
    ("interface", "there", "expected"),
    [
        # What the host's name resolves to comes first, and IPv4 before IPv6.
        (None, NETWORKS, ("10.1.0.2", "10.0.0.2", "fd00::2", "fd01::2")),
        (None, ["lo", "six"], ("fd01::2",)),
        (None, ["lo", "down", "local"], ("127.0.0.1",)),
        ("lo", NETWORKS, ("127.0.0.1", "::1")),
        ("eth0", NETWORKS, ("fd00::2", "10.0.0.2")),
        ("local", NETWORKS, ("fe80::3",)),
    ],
)
def test_which_addresses_others_may_reach(monkeypatch, within, interface, there, expected):
    def entries(name):
        return [
            SimpleNamespace(address=each, family=socket.AF_INET6 if ":" in each else socket.AF_INET)
            for each in NETWORKS[name]
        ]

    monkeypatch.setattr("psutil.net_if_addrs", lambda: {name: entries(name) for name in there})
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: SimpleNamespace(isup=name != "down") for name in there})
    within(addresses, "socket", getaddrinfo=lambda *_: [(0, 0, 0, "", ("10.1.0.2", 0))])
    assert local_addresses(interface) == expected
