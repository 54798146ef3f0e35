"""Pairs over torch's process groups, with stand-ins for the groups."""

from multiprocessing.connection import Pipe
from types import SimpleNamespace

import pytest
import torch

from collectx.transport.network.gloo import _GlooReceive
from collectx.transport.network.p2p import stamp_view
from collectx.transport.network.process_group import ConnectionStore, GroupPair, connect


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
        assert [there.get("a"), here.get("b"), here.get("a")] == [b"one", b"", b"one"]
        there.wait(["a", "b"])
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
