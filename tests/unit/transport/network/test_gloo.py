"""The store by which two processes make a pair over gloo."""

from multiprocessing.connection import Pipe

import pytest

from collectx.transport.network.gloo import ConnectionStore


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
