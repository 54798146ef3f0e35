"""How a worker joins, one end at a time: what the trainer admits, what the worker says, and when each gives up."""

import contextlib
import json
import os
import select
import socket
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from types import SimpleNamespace

import pytest
from user_code.toyworker import SECRET, batch_spec

from collectx import progress
from collectx.errors import RendezvousError
from collectx.transport import messages
from collectx.transport.network import handshake, link
from collectx.transport.network.admission import Admission, ListenerFilter, RemotePeer, filter_listeners
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.link import NetworkLink, join_trainer
from collectx.transport.network.p2p import PairConfig
from collectx.transport.peer import JoinState

ENDPOINT = Endpoint(("10.0.0.1", "10.0.0.2"), 7, SECRET)


class Config(PairConfig):
    """Makes pairs that are texts."""

    fails = False

    def make_pair(self, connection, rank, address):
        if self.fails:
            raise OSError("no pair")
        return SimpleNamespace(rank=rank, address=address, close=lambda: closed.append(address))


closed = []


@pytest.fixture
def admitting():
    """Makes an admission. Worker 0 is expected, 1 makes its pair, 2 has joined, 3 is gone, 4 is expected too."""
    states = [JoinState.EXPECTED, JoinState.PAIRING, JoinState.JOINED, JoinState.GONE]
    workers = {index: RemotePeer(index, state=state) for index, state in enumerate(states)}
    refused = []
    events = lambda name, **fields: refused.append((name, fields))  # noqa: E731
    made = Admission(workers, batch_spec(), Config(60.0), events, Endpoint(("127.0.0.1",), 0, SECRET), None)
    made.expect(4, lambda: {"name": "spec of 4"})
    closed.clear()
    yield made, workers, refused
    made.stop()
    with contextlib.suppress(OSError):  # a test may have closed it
        made.close()


HELLOS = [{"worker": worker, "host": "h", "pid": 1} for worker in (0, 1, 2, 3, 4, 5, -1, True, False, "0", 0.0, None)]


def ask(made, hello):
    """Returns the connection of a peer that has said this."""
    connection, _ = handshake.connect(made.endpoint, 60.0, "knob")
    connection.send_bytes(json.dumps(hello).encode())
    return connection


def test_which_workers_are_admitted(admitting, expected, wait_until):
    made, workers, refused = admitting
    lines = []
    for hello in [*HELLOS, {}, HELLOS[0]]:
        num_refused = len(refused)
        with ask(made, hello) as connection:
            reply = connection.recv_bytes().decode()
            if "refused" in reply:
                wait_until(lambda before=num_refused: len(refused) > before)
                said = refused[-1]
            else:
                connection.send_bytes(b"")
                peer, admitted, pair = made.take()
                said = f"{peer.index} {peer.info} rank {pair.rank} {pair.address} {peer.is_making_pair}"
                admitted.close()
            lines += [f"{hello}: {said}", f"    {reply}"]
    lines += [f"{index}: {peer.state.value} {peer.info}" for index, peer in workers.items()]
    num_refused = len(refused)
    made.stop()
    with pytest.raises(RendezvousError):
        handshake.connect(replace(made.endpoint, secret=b"wrong"), 0.0, "knob")
    made.close()
    assert len(refused) == num_refused
    expected("admission", "\n".join(lines))


@pytest.mark.parametrize("end", ["fails", "withdrawn", "withdrawn while it fails", "stopped", "closed"])
def test_a_worker_that_does_not_get_its_pair(admitting, end, monkeypatch, wait_until):
    made, workers, refused = admitting
    monkeypatch.setattr(Config, "fails", "fails" in end)
    if end == "withdrawn while it fails":
        made.expect(4, lambda: made.withdraw(workers[4]) or {})
    if end == "stopped":
        made.stop()
    with ask(made, {"worker": 4}) as connection:
        connection.recv_bytes()
        if end != "stopped":
            connection.send_bytes(b"")
        if "fails" in end or end == "stopped":
            wait_until(lambda: refused or end == "stopped")
            assert end == "stopped" or "worker 4 failed (OSError('no pair'))" in refused[0][1]["reason"]
            assert workers[4].state is (JoinState.EXPECTED if end == "fails" else JoinState.GONE)
        else:
            assert select.select([made.readable], [], [], 60)[0]
            if end == "withdrawn":
                made.withdraw(workers[4])
                assert made.take() is None
            else:
                made.stop()
                made.close()
        with pytest.raises((EOFError, ConnectionError)):
            connection.recv_bytes()
    assert closed == ([] if "fails" in end or end == "stopped" else ["127.0.0.1"])


# --- the worker's end ---


@pytest.fixture
def joining(monkeypatch, within):
    """Yields the trainer's end of the connection that a worker gets, and what the worker has called."""
    ours, theirs = Pipe()
    calls, now = [], iter([100.0, 110.0])
    monkeypatch.setattr(link, "connect", lambda *arguments: calls.append(("connect", *arguments)) or (theirs, "here"))
    monkeypatch.setattr(link, "enable_keepalive", lambda connection, seconds: calls.append(("keepalive", seconds)))
    monkeypatch.setattr(PairConfig, "make_pair", lambda *arguments: calls.append(arguments[1:]) or Idle())
    within(link, "time", monotonic=lambda: next(now))
    with ours, theirs:
        yield ours, theirs, calls


class Idle:
    """A pair on which nothing arrives."""

    def receive(self, buffer):
        return SimpleNamespace(done=lambda: False, buffer=buffer)


def test_why_a_worker_does_not_join(joining, monkeypatch, within):
    ours, _, _ = joining
    ours.send_bytes(b'{"refused": "no such worker"}')
    with pytest.raises(RendezvousError, match="the trainer refused this worker: no such worker"):
        join_trainer(ENDPOINT, 3, {}, 60.0)
    for error, words in (
        (BlockingIOError(), "the trainer sent nothing for too long while worker 3 was joining"),
        (EOFError("end"), r"the trainer ended while worker 3 was joining \(end\)"),
    ):
        broken = SimpleNamespace(send_bytes=lambda message: None, recv_bytes=SimpleNamespace(side=error))
        broken.recv_bytes = lambda error=error: (_ for _ in ()).throw(error)
        monkeypatch.setattr(link, "connect", lambda *arguments, broken=broken: (broken, "here"))
        within(link, "time", monotonic=lambda: 0.0)
        with pytest.raises(RendezvousError, match=words):
            join_trainer(ENDPOINT, 3, {}, 60.0)


def test_a_worker_tells_its_progress_at_its_first_step_and_then_now_and_then(monkeypatch, within):
    now, counts, told = [100.0], [0, 0, 0], []
    within(link, "time", monotonic=lambda: now[0])
    monkeypatch.setattr(progress, "counts", counts)
    ours, theirs = Pipe()
    with ours, theirs:
        made = NetworkLink(0, theirs, Idle(), batch_spec(1), SECRET, 2.0)
        for after_s, num_steps in ((0.0, 0), (0.001, 1), (0.49, 2), (0.02, 2), (0.48, 3), (0.03, 4)):
            now[0] += after_s
            counts[0] = num_steps
            assert made.stop[0] is False
            while ours.poll():
                told.append((round(now[0] - 100.0, 3), messages.unpack_progress(ours.recv_bytes())[0]))
    assert told == [(0.0, 0), (0.001, 1), (0.511, 2), (1.021, 4)]


def test_a_worker_hears_at_once_that_the_trainer_is_gone():
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    called = []
    with ours, theirs:
        made = NetworkLink(0, theirs, Idle(), batch_spec(1), SECRET, 60.0)
        end = made.on_disconnect(lambda: called.append(1))
        ours.send_bytes(b"word")
        end()
        assert called == []
        end = made.on_disconnect(lambda: called.append(1))
        ours.close()
        while not called:
            pass
        end()
        assert called == [1]


# --- the handshake ---


# --- ports of libraries ---


def test_a_filtered_port_is_open_while_a_peer_is_expected():
    def is_open():
        with contextlib.suppress(TimeoutError), socket.create_connection(place, timeout=0.02):
            return True
        return False

    made, filtered = filter_listeners(lambda: socket.create_server(("127.0.0.1", 0), backlog=20))
    with made:
        place = made.getsockname()
        states = [is_open()]
        for change in (filtered.allow, filtered.allow, filtered.block, filtered.block, filtered.allow):
            change()
            states.append(is_open())
        assert states == [False, True, True, True, False, True]
        filtered.block()
        # The filter of a library leaves other files alone, also one that has the number of its socket meanwhile.
        with socket.create_server(("127.0.0.1", 0)) as other:
            filter_listeners(lambda: None)
            place = other.getsockname()
            assert is_open()
            os.dup2(other.fileno(), made.fileno())
            filtered.allow()
            filtered.block()
            assert is_open()
            ListenerFilter([other.fileno()])
            assert not is_open()
    made, _ = filter_listeners(lambda: socket.create_server(("127.0.0.1", 0)), lambda descriptor: False)
    with made:
        place = made.getsockname()
        assert is_open()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_batch_that_cannot_be_sent_is_an_error_unless_the_trainer_is_gone(is_closed):
    def send(buffer):
        raise RuntimeError("broken")

    ours, theirs = Pipe()
    with ours, theirs:
        pair = Idle()
        pair.send = send
        made = NetworkLink(0, theirs, pair, batch_spec(1), SECRET, 60.0)
        if is_closed:
            ours.close()
        else:
            ours.send_bytes(messages.pack_grant(0, None))  # so that it does not wait for the trainer's end
        with contextlib.nullcontext() if is_closed else pytest.raises(RuntimeError, match="broken"):
            made.send(0, None)
        assert made.stop[0] is is_closed
