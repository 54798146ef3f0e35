"""Parts of the network: what listens where, gloo's pairs, the options of RPC, and the trainer's end at its limits."""

import socket
from collections import deque
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from configurations import config
from user_code.toyworker import SECRET, batch_spec

from collectx.config.schema.launcher import RpcBackendConfig
from collectx.errors import ConfigError, WorkerDied, WorkerTimeout
from collectx.transport import messages
from collectx.transport.base import Arrival, Departure, SlotReport
from collectx.transport.network import addresses, gloo, rpc_options
from collectx.transport.network.addresses import listening_sockets, plain_address
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.p2p import PairConfig
from collectx.transport.network.remote_peer import RemotePeer
from collectx.transport.network.transport import NetworkTransport
from collectx.transport.peer import JoinState


@pytest.fixture
def listening(within):
    """Returns the listening places; `taken` are the occupied ones."""
    calls, taken = [], []

    class Server:
        def __init__(self, port):
            self.port, self.is_closed = port, False

        def __enter__(self):
            return self

        def __exit__(self, *_):
            calls.append(f"closed {self.port}")

        def getsockname(self):
            return ("", self.port)

    def create_server(place, **options):
        family = "6" if options.pop("family", socket.AF_INET) == socket.AF_INET6 else "4"
        calls.append(f"{place} v{family} {options}")
        if taken and taken.pop(0):
            raise OSError("taken")
        return Server(place[1] or 1000 + len(calls))

    within(
        addresses,
        "socket",
        create_server=create_server,
        has_dualstack_ipv6=lambda: has_both[0],
        if_nametoindex=lambda name: 5,
    )
    has_both = [True]
    return calls, taken, has_both


def test_what_is_listened_on(listening, expected):
    calls, taken, has_both = listening
    lines = []
    for places, port, interface, dual, busy in (
        (["127.0.0.1"], 7, None, True, []),
        (["127.0.0.1", "::1"], 0, None, True, []),
        (["127.0.0.1", "10.0.0.1"], 0, None, True, []),
        (["10.0.0.1"], 7, None, False, []),
        (["10.0.0.1", "fe80::1"], 0, "eth0", True, []),
        (["fd00::1"], 7, "eth0", True, []),
        (["127.0.0.1", "::1"], 0, None, True, [False, True]),
        (["127.0.0.1", "::1"], 0, None, True, [True] * 9),
        (["127.0.0.1", "::1"], 0, None, True, [True] * 10),
        (["127.0.0.1", "::1"], 7, None, True, [False, True]),
        (["10.0.0.1"], 7, None, True, [True]),
    ):
        calls.clear()
        taken[:], has_both[0] = busy, dual
        try:
            found = str([server.port for server in listening_sockets(places, port, interface)])
        except ConfigError as error:
            found = str(error)
        lines += [f"{places} port {port} on {interface}: {found}", *(f"    {call}" for call in calls)]
    expected("listening", "\n".join(lines))
    assert [plain_address(each) for each in ("::ffff:10.0.0.1", "fe80::1%eth0", "::1")] == [
        "10.0.0.1",
        "fe80::1",
        "::1",
    ]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fails", [False, True])
def test_a_pair_over_gloo_is_made_while_its_port_is_open(rank, fails, monkeypatch, within):
    calls = []

    class Gloo:
        _Options = SimpleNamespace

        def __init__(self, store, rank, size, options):
            calls.append((store, rank, size, options))
            if fails:
                raise RuntimeError("no pair")

        def send(self, *arguments):
            return arguments

        recv = send

    listeners = SimpleNamespace(allow=lambda: calls.append("allow"), block=lambda: calls.append("block"))
    store = SimpleNamespace(finish=lambda: calls.append("finish"))
    monkeypatch.setattr(gloo, "_device", lambda address, process: (f"device of {address}", listeners))
    monkeypatch.setattr(gloo, "ConnectionStore", lambda connection: store)
    within(gloo, "dist", ProcessGroupGloo=Gloo)
    options = SimpleNamespace(_devices=["device of here"], _threads=0, _timeout=timedelta(seconds=60))
    with pytest.raises(RuntimeError, match="no pair") if fails else nullcontext():
        pair = gloo.GlooPair(PairConfig(60.0), "line", rank, "here")
    assert calls == ["allow", (store, rank, 2, options), *([] if fails else ["finish"]), "block"]
    if not fails:
        buffer = torch.ones(64, dtype=torch.uint8)
        received = pair.receive(buffer)
        assert received._work == ([buffer], 1 - rank, 0)
        assert buffer[-8:].tolist() == [0] * 8  # without the stamp of an earlier message
        assert buffer[:-8].tolist() == [1] * 56


def test_the_options_of_rpc(expected):
    lines = []
    for key, value in [
        ("num_worker_threads", 4),
        ("num_worker_threads", 0),
        ("num_worker_threads", 1),
        ("rpc_timeout", 0.5),
        ("rpc_timeout", -1),
        ("rpc_timeout", True),
        ("rpc_timeout", "9"),
        ("_transports", ["uv", "shm"]),
        ("_transports", ("uv",)),
        ("_transports", []),
        ("_transports", "uv"),
        ("_channels", ["uv", 1]),
        ("init_method", "x"),
    ]:
        cfg = config("rpc")
        assert list(rpc_options.tensorpipe(cfg)) == []
        cfg.backend = RpcBackendConfig(kind="rpc", tensorpipe={key: value}, visible_devices=None)
        lines.append(f"{key}={value!r}: {[each.rule for each in rpc_options.tensorpipe(cfg)]}")
    for visible, acting in [
        (None, ["cpu", "cpu"]),
        ("cuda:0", ["cpu", "cpu"]),
        (["cuda:0", "gpu:1"], ["cpu", "cpu"]),
        (["cuda:0", "cuda:12", "cpu"], ["cpu", "cpu"]),
        (["cuda:0"], ["cpu", "cpu"]),
        (["cuda:0", "cpu"], ["cuda", "cuda"]),
        (["cuda:0", "cpu"], ["cpu", "cpu"]),
        (["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]),
        (["cuda:0", "cuda:1"], ["cuda:1", "cuda:1"]),
        ([], ["cpu", "cpu"]),
    ]:
        backend = RpcBackendConfig(kind="rpc", tensorpipe={}, visible_devices=visible)
        found = [each.rule for each in rpc_options.visible_problems(backend, 2, acting.__getitem__)]
        lines.append(f"{visible} {acting}: {found}")
    expected("rpc-options", "\n".join(lines))


# --- the trainer's end ---


class Trainer(NetworkTransport):
    """Without a listener; its supervisor only writes down what it is told."""

    def __init__(self):
        self.told, self.spec, self.endpoint = [], batch_spec(1), Endpoint(("10.0.0.1",), 7, SECRET)
        self._layout, self._config = self.spec.layout(), PairConfig(60.0)
        self._announced, self._received, self._memory, self._leased = [], [], {}, set()
        told = self.told
        self._supervisor = SimpleNamespace(
            describe=lambda peer: f"worker {peer.index}",
            has_message=lambda peer: peer.has_delivered,
            **{
                name: lambda *arguments, name=name: told.append((name, *arguments[1:]))
                for name in ("progressed", "renew_timer", "replied", "delivered", "remove")
            },
        )
        self._weight_sync = SimpleNamespace(
            acknowledge=lambda peer: told.append("acknowledged"), remove=lambda peer: told.append("no more weights")
        )
        self._admission = SimpleNamespace(withdraw=lambda peer: told.append("withdrawn"))


@pytest.mark.parametrize(("frames", "is_right"), [(-1, False), (0, True), (6, True), (7, False)])
def test_a_batch_has_no_more_frames_than_a_slot(frames, is_right):
    trainer, peer = Trainer(), RemotePeer(0, state=JoinState.EXPECTED)
    report = SlotReport(3, frames, 0.0, 0.0, np.zeros(0), np.zeros(0, int))
    trainer._handle_message(peer, messages.pack_full(1, report))
    assert len(trainer._announced) == is_right
    assert trainer.told == ([("renew_timer",)] if is_right else ["withdrawn", ("remove",)])
    if not is_right:
        assert str(trainer._received[0].error) == (
            f"worker 0 is gone: it sent an invalid message (ValueError('{frames} frames'))"
        )


def test_what_the_trainer_does_with_other_messages():
    trainer, peer = Trainer(), RemotePeer(0)
    trainer._handle_message(peer, messages.pack_version(messages.HAVE, 3))
    trainer._handle_message(peer, messages.pack_progress((4, 5)))
    assert trainer.told == ["acknowledged", ("progressed", (4, 5))]
    assert (trainer._announced, trainer._received) == ([], [])


@pytest.mark.parametrize("is_making_pair", [False, True])
@pytest.mark.parametrize("state", [JoinState.PAIRING, JoinState.JOINED])
@pytest.mark.parametrize("error", [WorkerTimeout("late"), WorkerDied("gone")])
def test_a_firewall_is_suspected_where_only_the_pair_fails(is_making_pair, state, error):
    trainer, closed = Trainer(), []
    error = type(error)(*error.args)
    peer = RemotePeer(3, state=state, is_making_pair=is_making_pair, info={"host": "far"})
    peer.pair, peer.incoming = SimpleNamespace(close=lambda: closed.append(1)), {1: None}
    trainer._memory = {(3, 0): "full", (3, 1): "not yet"}
    trainer._remove_worker(peer, error)
    is_suspected = is_making_pair and state is JoinState.PAIRING and isinstance(error, WorkerTimeout)
    notes = getattr(error, "__notes__", [])
    assert len(notes) == is_suspected
    assert all(
        note.startswith("Worker 3 on far reached the trainer's port 7, but not the port of gloo") for note in notes
    )
    assert trainer._received == [Departure(3, error)]
    has_joined = state is JoinState.JOINED
    assert trainer.told == ["withdrawn", ("remove",), *["no more weights"] * has_joined]
    assert closed == [1] * has_joined
    assert [*trainer._memory] == ([(3, 0)] if has_joined else [(3, 0), (3, 1)])


def test_what_was_announced_is_delivered_when_its_bytes_are_there():
    """Three workers: one is complete, one is not, the pair of one broke; and what came after each."""

    def incoming(is_done, breaks=False):
        def wait():
            if breaks:
                raise RuntimeError("broken")
            return "bytes"

        return SimpleNamespace(done=lambda: is_done, wait=wait)

    trainer = Trainer()
    peers = [RemotePeer(index, state=JoinState.JOINED) for index in range(5)]
    peers[3].has_delivered = True  # so the supervisor has a message of it
    peers[4].state = JoinState.GONE
    removed = []
    trainer._remove_worker = lambda peer, error: removed.append((peer.index, str(error)))
    for peer, each in zip(peers, (incoming(True), incoming(False), *[incoming(True, True)] * 2, None), strict=True):
        peer.incoming = {1: each}
    events = [(peer, Arrival(peer.index, slot, None)) for peer in peers for slot in (0, 1, 1)]
    trainer._announced = [*events]
    trainer._complete_arrivals()
    assert [(event.worker, event.slot) for event in trainer._received] == [(0, 1)]
    assert trainer._memory == {(0, 1): "bytes"}
    assert [(peer.index, event.slot) for peer, event in trainer._announced] == [(1, 1), (1, 1), (2, 1), (3, 1)]
    assert removed == [(2, "worker 2: broken")]
    assert trainer.told == [("delivered",)]


def test_how_long_the_trainer_sleeps():
    trainer, limits = Trainer(), []
    trainer._supervisor.has_outstanding = True
    trainer._received = deque()
    trainer._process_events = lambda limit: limits.append(limit) or trainer._received.append("event")
    for announced in ([], [1]):
        trainer._announced = announced
        assert trainer.receive() == "event"
    assert limits == [None, 0.0005]
    # Before weights are published, acknowledgements are handled, if there may be any.
    trainer._weight_sync.publish = lambda writes: limits.append(writes) or 4
    for joined in ([], [1]):
        trainer._joined = lambda joined=joined: joined
        assert trainer.publish({}) == 4
    assert limits[2:] == [{}, 0.0, {}]


def test_only_a_slot_alone_is_leased_until_it_is_released():
    trainer = Trainer()
    trainer._memory = {(0, 0): torch.zeros(1000, dtype=torch.uint8), (0, 1): torch.ones(1000, dtype=torch.uint8)}
    first, second = (Arrival(0, slot, None) for slot in (0, 1))
    assert trainer.lease([first, second]) is None
    leased = trainer.lease([second])
    assert (len(leased), leased.unique().tolist()) == (trainer._layout.nbytes, [1])
    trainer.release([first])
    trainer.release([second])
    assert [*trainer._memory] == [(0, 0)]
