"""Pairs over torch's process groups, with stand-ins for the groups."""

from multiprocessing.connection import Pipe
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from collectx.transport.network import p2p
from collectx.transport.network.gloo import ConnectionStore, GroupPair, _GlooReceive, connect
from collectx.transport.network.p2p import (
    PairConfig,
    message_buffer,
    received_message,
    set_stamp,
    stamp_of,
    stamp_view,
)


class Group:
    """Keeps what is called, with the peer and the tag."""

    def __init__(self):
        self.calls, self.is_completed = [], False

    def _work(self, name):
        return SimpleNamespace(is_completed=lambda: self.is_completed, wait=lambda: self.calls.append(f"wait {name}"))

    def send(self, tensors, peer, tag):
        self.calls.append(("send", len(tensors), peer, tag))
        return self._work("send")

    def recv(self, tensors, peer, tag):
        self.calls.append(("recv", len(tensors), peer, tag))
        return self._work("recv")

    def abort(self):
        self.calls.append("abort")


def test_a_message_is_waited_for_once():
    group, buffer = Group(), torch.zeros(3, dtype=torch.uint8)
    received = GroupPair(group, group, 1).receive(buffer)
    assert not received.done()
    group.is_completed = True
    assert received.done()
    group.is_completed = False
    for _ in range(2):
        assert received.wait() is buffer
        assert received.done()
    assert group.calls == [("recv", 1, 1, 0), "wait recv"]


def test_a_pair_is_closed_once_and_each_group_with_it():
    groups = Group(), Group()
    for pair, count in ((GroupPair(groups[0], groups[0], 1), 1), (GroupPair(*groups, 0), 2)):
        for group in groups:
            group.calls.clear()
        for _ in range(2):
            pair.close()
        assert sum(len(group.calls) for group in groups) == count
    GroupPair(*groups, 0).send(torch.zeros(1))
    assert (groups[0].calls[-1], groups[1].calls[-1]) == (("send", 1, 0, 0), "abort")


@pytest.mark.parametrize(("rank", "sender", "name"), [(0, 0, "send"), (1, 0, "recv"), (0, 1, "recv"), (1, 1, "send")])
def test_one_rank_sends_a_byte_to_the_other(rank, sender, name):
    group = Group()
    connect(group, rank, sender)
    assert group.calls == [(name, 1, 1 - rank, 0), f"wait {name}"]


def test_a_gloo_message_is_complete_with_its_stamp():
    buffer = torch.zeros(64, dtype=torch.uint8)
    stamp = stamp_view(buffer)
    received = _GlooReceive(SimpleNamespace(wait=lambda: None), buffer, stamp)
    assert not received.done()
    stamp[0] = 1
    assert received.done()
    assert received.wait() is buffer


def test_a_store_gives_both_processes_the_values_of_both():
    ours, theirs = Pipe()
    with ours, theirs:
        here, there = ConnectionStore(ours), ConnectionStore(theirs)
        here.set("a", b"one")
        there.set("b", bytearray(b""))
        assert (there.check(["a"]), here.check(["a"])) == (False, True)
        there.wait(["a", "b"])
        assert [there.get("a"), here.get("b"), here.get("a")] == [b"one", b"", b"one"]
        assert there.check(["a", "b"])
        assert not there.check(["a", "c"])
        here.set("late", b"2")
        theirs.send_bytes(b"")  # as `finish` of the other one
        here.finish()
        here.set("c", b"3")  # after the end no longer sent
        there.finish()
        assert there.get("late") == b"2"
        with pytest.raises(RuntimeError, match="the pair was made without c"):
            there.get("c")
        assert not theirs.poll()


def test_the_stamp_is_the_last_number_of_a_message():
    for nbytes, size in ((0, 64), (1, 128), (64, 128), (65, 192)):
        buffer = message_buffer(nbytes)
        set_stamp(buffer, 258)
        assert (buffer.tolist()[-8:], buffer.sum().item(), stamp_of(buffer)) == ([2, 1] + [0] * 6, 3, 258)
        assert len(buffer) == len(received_message(nbytes, "cpu")) == size
        assert isinstance(stamp_view(buffer), np.ndarray)  # which is faster


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(1.0, 30.0), (30.0, 30.0), (31.0, 31.0), (float("inf"), 86400.0)])
def test_a_pair_is_made_within_a_limit(timeout_s, limit_s, monkeypatch):
    calls = []
    made = SimpleNamespace(make=lambda *arguments: calls.append(arguments[1:]) or "pair")
    monkeypatch.setattr(p2p, "implementation", lambda group, name: calls.append((group, name)) or made)
    monkeypatch.setattr(p2p, "set_receive_timeout", lambda connection, seconds: calls.append(seconds))
    assert PairConfig(timeout_s).make_pair("line", 1, "here") == "pair"
    assert calls == [limit_s, ("backend", "gloo"), ("line", 1, "here"), None]
