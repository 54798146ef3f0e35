"""How trainer and workers find each other: with real sockets, over IPv4 and IPv6, beside strangers."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from worlds import toyworker
from worlds.toyworker import NUMBER, slab_spec

from collectx.batch import Layout
from collectx.errors import ConfigError, RendezvousError
from collectx.launcher.local import LocalLauncher
from collectx.transport.base import Arrival
from collectx.transport.distributed import DistributedTransport
from collectx.transport.rendezvous import PROTOCOL, Listener, Meeting, connect, keep_alive, local_addresses
from collectx.transport.switchboard import Switchboard

SECRET = b"s" * 32


class Ear:
    """A listener that keeps what it hears."""

    def __init__(self, addresses=("127.0.0.1",), port=0, secret=SECRET):
        self.greeted, self.refusals = [], []
        self.listener = Listener(addresses, port, secret, self._greet, lambda *who: self.refusals.append(who))
        self.meeting = self.listener.meeting

    def _greet(self, connection, address):
        self.greeted.append((connection, address, connection.recv_bytes()))

    def close(self):
        self.listener.close()
        for connection, *_ in self.greeted:
            connection.close()


@pytest.fixture
def listen():
    ears = []

    def listen(*args, **kwargs):
        ears.append(Ear(*args, **kwargs))
        return ears[-1]

    yield listen
    for ear in ears:
        ear.close()


def say_hello(meeting, timeout_s=60.0):
    connection, address = connect(meeting, timeout_s, "knob=7")
    with connection:
        connection.send_bytes(b"hello")
    return address


@pytest.fixture
def closed_port():
    """A port at which nobody listens, and which nobody else can take meanwhile."""
    with socket.socket(socket.AF_INET6) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind(("::", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_knows_the_secret_is_greeted(listen, wait_until, address):
    ear = listen((address,))
    assert say_hello(ear.meeting) == address
    wait_until(lambda: ear.greeted)
    _, seen, message = ear.greeted[0]
    assert (seen, message) == (address, b"hello")
    assert not ear.refusals


def test_ipv4_and_ipv6_reach_the_same_trainer_and_addresses_are_plain(listen, wait_until):
    """It listens everywhere on one socket, where IPv4 looks like ::ffff:127.0.0.1."""
    ear = listen(("192.0.2.1", "127.0.0.1"))
    assert say_hello(Meeting(("127.0.0.1",), ear.meeting.port, SECRET)) == "127.0.0.1"
    assert say_hello(Meeting(("::1",), ear.meeting.port, SECRET)) == "::1"
    with pytest.raises(RendezvousError):
        say_hello(Meeting(("127.0.0.1",), ear.meeting.port, b"another"), 0.0)
    wait_until(lambda: len(ear.greeted) == 2 and ear.refusals)
    assert {address for _, address, _ in ear.greeted} == {"127.0.0.1", "::1"}
    assert ear.refusals[0][0] == "127.0.0.1"


def test_loopback_alone_is_not_heard_from_outside(listen):
    addresses = [address for address in local_addresses(None) if address != "127.0.0.1"]
    if not addresses:
        pytest.skip("this host has no address besides loopback")
    ear = listen(("127.0.0.1",))
    with pytest.raises(RendezvousError, match="could not reach the trainer"):
        say_hello(Meeting((addresses[0],), ear.meeting.port, SECRET), 0.0)


def test_the_next_address_is_tried_where_one_does_not_answer(listen):
    ear = listen(("127.0.0.1",))
    assert say_hello(Meeting(("::1", "127.0.0.1"), ear.meeting.port, SECRET)) == "127.0.0.1"


def test_a_stranger_with_another_secret_is_refused_and_told_so(listen, wait_until):
    ear = listen()
    with pytest.raises(RendezvousError, match=r"127\.0\.0\.1 port \d+: it closed the connection"):
        say_hello(Meeting(("127.0.0.1",), ear.meeting.port, b"wrong"), 0.0)
    wait_until(lambda: ear.refusals)
    assert ear.refusals == [("127.0.0.1", "it does not know the secret of this run")]
    say_hello(ear.meeting)


def test_a_listener_that_does_not_know_the_secret_is_not_trusted():
    """A worker tells nothing to whoever else listens at the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        heard = []

        def pretend():
            peer, _ = server.accept()
            with peer:
                peer.sendall(PROTOCOL + b"n" * 32)
                heard.append(peer.recv(64))
                peer.sendall(b"p" * 32)
                heard.append(peer.recv(64))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(RendezvousError, match="the trainer of another run"):
            say_hello(Meeting(("127.0.0.1",), server.getsockname()[1], SECRET), 0.0)
        thread.join(60)
    assert len(heard[0]) == 64
    assert SECRET not in heard[0]
    assert heard[1] == b""


def test_what_was_said_once_opens_nothing_the_second_time(listen, wait_until):
    ear = listen()

    def dial(answer):
        with socket.create_connection(("127.0.0.1", ear.meeting.port), timeout=10) as peer:
            nonce = b""
            while len(nonce) < len(PROTOCOL) + 32:
                nonce += peer.recv(100)
            peer.sendall(answer)
            with contextlib.suppress(ConnectionResetError):
                return peer.recv(100)
            return b""

    with socket.create_connection(("127.0.0.1", ear.meeting.port), timeout=10) as peer:
        challenge = b""
        while len(challenge) < len(PROTOCOL) + 32:
            challenge += peer.recv(100)
        mine = b"m" * 32
        said = mine + hmac.digest(SECRET, b"worker" + challenge[len(PROTOCOL) :] + mine, "sha256")
        peer.sendall(said)
        assert len(peer.recv(32)) == 32
    assert dial(said) == b""
    wait_until(lambda: ear.refusals)


def test_strangers_who_take_all_descriptors_do_not_end_the_listening(listen, wait_until):
    ear = listen()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers = [socket.socket() for _ in range(3)]
    try:
        # As many as are open, of which the listener needs one for everyone who comes.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
        for stranger in strangers:
            stranger.connect(("127.0.0.1", ear.meeting.port))
        time.sleep(0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    say_hello(ear.meeting)
    wait_until(lambda: ear.greeted)
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("notice_s", [0.001, 60.0, 1e6, 1e12, float("inf")])
def test_a_connection_can_be_kept_alive_for_any_time(listen, notice_s):
    ear = listen()
    connection, _ = connect(ear.meeting, 60.0, "knob=7")
    with connection:
        keep_alive(connection, notice_s)
        connection.send_bytes(b"hello")


def test_a_port_that_is_taken_is_a_configuration_error(listen):
    ear = listen()
    with pytest.raises(ConfigError, match=rf"^backend\.port={ear.meeting.port}: .*choose another, or null"):
        Ear(port=ear.meeting.port)


def test_a_transport_that_cannot_listen_leaves_nothing_open(listen):
    port, switchboard = listen().meeting.port, Switchboard(60.0, 60.0, 60.0, str)
    open_before = psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(ConfigError, match=r"backend\.port"):
            DistributedTransport(
                slab_spec(num_workers=1), switchboard, ("127.0.0.1",), port, SECRET, lambda *who: {}, 60.0
            )
    assert psutil.Process().num_fds() <= open_before  # other tests' may be collected meanwhile
    switchboard.close()


def test_a_worker_that_finds_nobody_says_where_it_looked(closed_port):
    started = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        say_hello(Meeting(("127.0.0.1", "::1"), closed_port, SECRET), 60.0)
    assert time.monotonic() - started < 30
    assert re.search(rf"{re.escape(socket.gethostname())} could not reach the trainer", str(caught.value))
    for address in ("127.0.0.1", "::1"):
        assert f"{address} port {closed_port}: " in str(caught.value)
    assert "backend.interface" in str(caught.value)


def test_a_trainer_behind_a_wall_is_given_up_within_the_stated_time():
    """A full backlog: the kernel drops what would connect, as a firewall does."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        started = time.monotonic()
        with pytest.raises(RendezvousError, match=r"within 1 s \(knob=7\).*timed out"):
            say_hello(Meeting(("127.0.0.1",), server.getsockname()[1], SECRET), 1.0)
        assert time.monotonic() - started < 30


def test_a_wrong_interface_is_told_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        local_addresses("loo")
    (problem,) = caught.value.problems
    assert re.search(r"backend\.interface=loo: no such network interface .*did you mean lo\?", problem)
    for name in psutil.net_if_addrs():
        if name.startswith(("lo", "eth")):
            assert name in problem


def test_an_interface_gives_its_addresses_and_none_gives_no_loopback():
    assert "127.0.0.1" in local_addresses("lo")
    usable = local_addresses(None)
    assert usable == ("127.0.0.1",) or not {"127.0.0.1", "::1"} & set(usable)


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root only")
def test_a_host_with_ipv6_alone(tmp_path):
    command = ["unshare", "--net", sys.executable, str(Path(__file__).parents[2] / "scripts" / "ipv6only.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, cwd=tmp_path)
    if ended.returncode and "not permitted" in ended.stderr:
        pytest.skip(f"no network namespaces here: {ended.stderr.splitlines()[-1]}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["('127.0.0.1',)", "('fd00::1',)", "fd00::1", "400"]


class Run:
    """A trainer of one toy worker, which listens at `address`."""

    def __init__(self, address):
        self.events = []
        self.launcher = LocalLauncher(1)
        switchboard = Switchboard(60.0, 60.0, 60.0, self.launcher.describe)
        self.transport = DistributedTransport(
            slab_spec(num_workers=1),
            switchboard,
            (address,),
            0,
            SECRET,
            lambda *who: {},
            60.0,
            lambda name, **fields: self.events.append((name, fields)),
        )
        self.transport.publish(lambda buffer: buffer.fill_(1))

    def start(self):
        arguments = (self.transport.meeting, 0, self.transport.spec, None)
        self.transport.attach(0, self.launcher.start(toyworker.serve_remote, arguments, 0))

    def deliver(self, count):
        spec = self.transport.spec
        for expected in count:
            self.transport.grant(0, 0)
            while not isinstance(event := self.transport.receive(), Arrival):
                pass
            memory = self.transport.gather([event], own=True)
            numbers = Layout(spec.leaves, spec.rows, spec.steps).slot(memory).tensors[NUMBER]
            assert numbers.reshape(-1, 2).unique(dim=0).tolist() == [[0, expected]]


@pytest.fixture(params=["127.0.0.1", "::1"])
def run(request):
    run = Run(request.param)
    yield run
    run.transport.close()


def test_a_run_over_one_family_alone(run):
    run.start()
    run.deliver(range(5))


def test_strangers_before_and_during_a_run_disturb_nothing_and_are_logged(run, wait_until):
    meeting = run.transport.meeting
    with contextlib.ExitStack() as stack:

        def visit(*words):
            peer = stack.enter_context(socket.create_connection((meeting.addresses[0], meeting.port), timeout=10))
            for word in words:
                peer.sendall(word)
            return peer

        visit()  # says nothing for as long as the run goes on
        visit(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
        run.start()
        run.deliver(range(3))
        visit(os.urandom(1000))
        visit(b"\x80\x04half a pickle").close()
        with pytest.raises(RendezvousError):
            say_hello(Meeting(meeting.addresses, meeting.port, b"wrong"), 0.0)
        # Knows the secret, and talks nonsense afterwards.
        for nonsense in (b"", b"{", b"[]", b'{"worker": "all"}', b'{"worker": 99}', b"\x80\x04K\x01."):
            connection, _ = connect(meeting, 60.0, "knob")
            with connection, contextlib.suppress(OSError):
                connection.send_bytes(nonsense)
        run.deliver(range(3, 8))

        def are_told(*wanted):
            reasons = [fields["reason"] for _, fields in run.events]
            return all(any(words in reason for reason in reasons) for words in wanted)

        wait_until(lambda: are_told("it does not know the secret of this run", "worker 99 is not expected"))
        # All but the one who still says nothing.
        wait_until(lambda: len(run.events) >= 10)
    assert {name for name, _ in run.events} == {"peer_refused"}
    assert {fields["address"] for _, fields in run.events} == {meeting.addresses[0]}
    run.deliver(range(8, 10))
