"""The trainer's listener, one function at a time: how a handshake begins and ends, and how all of them are closed."""

import contextlib
import hmac
import socket
import threading
from types import SimpleNamespace

import pytest
from user_code.toyworker import SECRET

from collectx.errors import RendezvousError
from collectx.transport.network import handshake
from collectx.transport.network.handshake import PROTOCOL, Endpoint, Listener, new_secret, receive_hello

MINE, THEIRS = b"m" * 32, b"t" * 32


def proof(role, *nonces):
    return hmac.digest(SECRET, role + b"".join(nonces), "sha256")


class Hashed(SimpleNamespace):
    __hash__ = object.__hash__


class Peer:
    """A socket that says `words`, in parts, and then nothing more."""

    def __init__(self, words, size=7):
        self.words, self.size, self.sent, self.timeouts = words, size, [], []

    def recv(self, count):
        part, self.words = self.words[: min(count, self.size)], self.words[min(count, self.size) :]
        return part

    def sendall(self, content):
        self.sent.append(content)

    def settimeout(self, seconds):
        self.timeouts.append(seconds)


@pytest.fixture
def clock(within):
    """Each look takes a tenth of a second."""
    now = [100.0]

    def monotonic():
        now[0] += 0.1
        return now[0]

    within(handshake, "time", monotonic=monotonic)
    within(handshake, "secrets", token_bytes=lambda size: b"m" * size)
    return now


def test_each_end_proves_that_it_knows_the_secret(clock):
    peer = Peer(THEIRS + proof(b"worker", MINE, THEIRS) + b"more")
    assert handshake._ask(peer) == MINE
    assert (peer.sent, peer.timeouts) == ([PROTOCOL + MINE], [10.0])
    handshake._prove_to_worker(peer, SECRET, MINE, 110.0)
    assert peer.sent[1:] == [proof(b"trainer", THEIRS, MINE)]
    assert peer.words == b"more"  # is not read
    peer = Peer(PROTOCOL + THEIRS + proof(b"trainer", MINE, THEIRS) + b"more")
    handshake._prove_to_trainer(peer, SECRET)
    assert peer.sent == [MINE + proof(b"worker", THEIRS, MINE)]
    assert peer.words == b"more"
    assert (len(new_secret()), PROTOCOL) == (32, b"collectx-1\n")


PROVE = {
    "worker": lambda peer: handshake._prove_to_worker(peer, SECRET, MINE, 110.0),
    "trainer": lambda peer: handshake._prove_to_trainer(peer, SECRET),
}


@pytest.mark.parametrize(
    ("prove", "words", "message"),
    [
        ("worker", THEIRS + proof(b"trainer", MINE, THEIRS), "it does not know the secret of this run"),
        ("worker", THEIRS + proof(b"worker", THEIRS, MINE), "it does not know the secret of this run"),
        ("worker", THEIRS, "it closed the connection: it does not know the secret"),
        ("trainer", b"collectx-0\n" + THEIRS, "is not a trainer of this collectx version"),
        ("trainer", PROTOCOL + THEIRS + proof(b"worker", THEIRS, MINE), "is the trainer of another run"),
        ("trainer", PROTOCOL[:-1], "it closed the connection"),
    ],
)
def test_who_does_not_know_the_secret_is_refused(clock, prove, words, message):
    peer = Peer(words)
    with pytest.raises(RendezvousError, match=message):
        PROVE[prove](peer)


def test_a_slow_peer_has_less_and_less_time(clock):
    peer = Peer(b"x" * 100, size=1)
    with pytest.raises(RendezvousError, match="it did not prove within 10 s"):
        handshake._receive_exactly(peer, 32, 100.55)
    assert [round(each, 2) for each in peer.timeouts] == [0.45, 0.35, 0.25, 0.15, 0.05]
    assert handshake._receive_exactly(peer, 0, 0.0) == b""


def listener(**fields):
    """A listener without sockets."""
    made = object.__new__(Listener)
    made.endpoint, made.said, made._closed = Endpoint(("127.0.0.1",), 7, SECRET), [], False
    made._lock, made._handshakes, made._queried, made._peers = threading.Lock(), threading.Semaphore(0), {}, {}
    made._refuse = lambda *what: made.said.append(what)
    made._on_connect = lambda *what: made.said.append(("connected", *what))
    vars(made).update(fields)
    return made


@pytest.mark.parametrize("fails", ["", "proof", "socket", "admission", "admission without words"])
def test_a_handshake_frees_its_place_and_its_peer_in_any_case(monkeypatch, fails):
    made, closed = listener(), []
    peer = SimpleNamespace(close=lambda: closed.append("peer"))
    connection = SimpleNamespace(close=lambda: closed.append("connection"))
    monkeypatch.setattr(handshake, "_message_connection", lambda peer: (connection, "here"))

    def prove(peer):
        if fails in ("proof", "socket"):
            raise RendezvousError("no proof") if fails == "proof" else OSError("reset")

    def connect(*what):
        made.said.append(what)
        if "admission" in fails:
            raise KeyError(*["no"] * (fails == "admission"))

    made._prove, made._on_connect = prove, connect
    made._handshake(peer, "there")
    assert made._handshakes.acquire(blocking=False)
    connected = (connection, "here")
    assert (
        made.said
        == {
            "": [connected],
            "proof": [("there", "no proof")],
            "socket": [("there", "reset")],
            "admission": [connected, ("there", "'no'")],
            "admission without words": [connected, ("there", "KeyError")],
        }[fails]
    )
    assert closed == {"": [], "proof": ["peer"], "socket": ["peer"]}.get(fails, ["connection"])


def test_a_query_is_known_until_it_is_answered(monkeypatch, clock):
    made, known = listener(), []
    monkeypatch.setattr(handshake, "_ask", lambda peer: MINE)

    def prove(*what):
        known.append((what, dict(made._queried)))
        if len(known) == 2:
            raise RendezvousError("no proof")

    monkeypatch.setattr(handshake, "_prove_to_worker", prove)
    made._prove("peer")
    with pytest.raises(RendezvousError, match="no proof"):
        made._prove("peer")
    assert [round(what[3], 2) for what, _ in known] == [110.1, 110.3]
    assert [(what[:3], [*queried]) for what, queried in known] == [(("peer", SECRET, MINE), ["peer"])] * 2
    assert made._queried == {}


def test_peers_that_are_silent_for_long_give_way(within, monkeypatch):
    made, ended = listener(), []

    def peer(name, fails=False):
        def shutdown(how):
            ended.append((name, how))
            if fails:
                raise OSError

        return Hashed(shutdown=shutdown)

    silent, broken, answering, new = peer("silent"), peer("broken", True), peer("answering"), peer("new")
    within(handshake, "time", monotonic=lambda: 100.0)
    monkeypatch.setattr(handshake, "wait", lambda peers, timeout: [each for each in peers if each is answering])
    made._queried = {silent: 99.74, broken: 90.0, answering: 90.0, new: 99.75}
    made._end_silent()
    assert sorted(ended) == [("broken", socket.SHUT_RDWR), ("silent", socket.SHUT_RDWR)]


def test_what_a_peer_says_first():
    said = []

    def connection(answers, words):
        def recv_bytes(limit):
            said.append(limit)
            if isinstance(words, Exception):
                raise words
            return words

        return SimpleNamespace(poll=lambda seconds: said.append(seconds) or answers, recv_bytes=recv_bytes)

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(handshake, "set_receive_timeout", lambda connection, seconds: said.append(("limit", seconds)))
        assert receive_hello(connection(True, b'{"a": 1}')) == {"a": 1}
        assert said == [("limit", 10.0), 10.0, 65536]
        for answers, words, message in (
            (False, b"", "it knows the secret, but sent nothing for 10 s"),
            (True, BlockingIOError(), "but its first message was not complete after 10 s"),
            (True, EOFError(), r"is not a collectx worker \(EOFError\(\)\)"),
            (True, OSError("long"), r"is not a collectx worker \(OSError\('long'\)\)"),
            (True, b"[1]", "is not a collectx worker$"),
            (True, b"{", r"is not a collectx worker \(JSONDecodeError"),
        ):
            with pytest.raises(RendezvousError, match=message):
                receive_hello(connection(answers, words))


def test_a_closing_listener_lets_workers_complete_their_pairs_at_first(within):
    """Seven looks at the clock: threads get half of five seconds, then the other half."""
    now, calls = [100.0], []
    within(handshake, "time", monotonic=lambda: now[0])

    def thread(name, takes_s):
        def join(limit_s):
            calls.append((name, limit_s))
            now[0] += min(limit_s, takes_s)

        return Hashed(join=join)

    slow = thread("handshake", 10.0)
    ends = SimpleNamespace(shutdown=lambda how: calls.append(("peer", how)))
    server = SimpleNamespace(
        shutdown=lambda how: calls.append(("server", how)) or (_ for _ in ()).throw(OSError),
        close=lambda: calls.append("closed"),
    )
    made = listener(_servers=[server], _threads=[thread("listener", 1.0)], _peers={slow: ends})
    made.close()
    assert made._closed
    assert calls == [
        ("server", socket.SHUT_RDWR),
        "closed",
        ("peer", socket.SHUT_RD),
        ("listener", 2.5),
        ("handshake", 1.5),
        ("peer", socket.SHUT_RDWR),
        ("listener", 2.5),
        ("handshake", 1.5),
    ]
