"""Options of connections, stacks of hanging workers, and the bytes of messages."""

import os
import socket
import struct
from multiprocessing.connection import Connection, Pipe

import numpy as np
import pytest
import torch

from collectx.transport import messages, tracebacks
from collectx.transport.base import Reset, SlotReport
from collectx.transport.connections import (
    MessageReader,
    disconnect_poll,
    enable_keepalive,
    set_receive_timeout,
    shut_down,
    socket_of,
)
from collectx.transport.tracebacks import request_stacks


@pytest.fixture
def ends():
    """Yields both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    ours, theirs = Connection(here.detach()), Connection(there.detach())
    with ours, theirs:
        yield ours, theirs


def test_the_options_of_a_connection(ends, expected):
    lines = []
    for notice_s in (0.001, 5.0, 10.0, 60.0, 1e6, float("inf")):
        enable_keepalive(ends[0], notice_s)
        with socket_of(ends[0]) as line:
            names = ["TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"]
            values = [line.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
            lines.append(f"{notice_s:g} s: {line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)} {values}")
    for seconds in (0.0, 0.5, 1.9, 2.0, 86400.0, float("inf"), None):
        set_receive_timeout(ends[0], seconds)
        with socket_of(ends[0]) as line:
            limit = struct.unpack("ll", line.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
            lines.append(f"set_receive_timeout {seconds}: {limit}")
    expected("connections", "\n".join(lines))


def test_the_end_of_a_connection_is_seen_and_messages_are_no_end(ends):
    ours, theirs = ends
    poll = disconnect_poll(ours)
    theirs.send_bytes(b"word")
    assert poll.poll(0) == []
    fork = os.dup(theirs.fileno())  # as in a process that was forked
    shut_down(theirs)
    assert theirs.closed
    assert [descriptor for descriptor, _ in poll.poll(5000)] == [ours.fileno()]
    os.close(fork)
    shut_down(ours)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 12, 13, 1000])
def test_messages_arrive_in_parts_of_any_size(size):
    ours, theirs = Pipe()
    with ours, theirs:
        reader, found = MessageReader(ours), []
        words = [b"", b"x", b"word" * 5]
        content = b"".join(struct.pack("!i", len(each)) + each for each in words)
        content += struct.pack("!iQ", -1, 3) + b"yes"
        for start in range(0, len(content), size):
            os.write(theirs.fileno(), content[start : start + size])
            found += reader.read()
        assert found == [*words, b"yes"]
        os.write(theirs.fileno(), struct.pack("!i", -2))
        with pytest.raises(OSError, match="a message of length -2"):
            reader.read()
        theirs.close()
        with pytest.raises(EOFError):
            reader.read()


# --- messages ---

REPORT = SlotReport(3, 6, 0.25, 0.5, np.array([1.5, -2.0]), np.array([6, 7]), 0.75, 1.0, np.array([[1.0], [2.0]]))


def test_the_bytes_of_messages(expected):
    lines = [f"{name}: {getattr(messages, name).hex()}" for name in dir(messages) if name.isupper() and name[0] != "_"]
    resets = (None, Reset(), Reset(0), Reset(0, True), Reset(2**31 - 1, True))
    lines += [f"grant {reset}: {messages.pack_grant(3, reset, 258).hex(' ', 8)}" for reset in resets]
    lines.append(f"version: {messages.pack_version(messages.HAVE, 7).hex(' ', 8)}")
    lines.append(f"progress: {messages.pack_progress((5, 6, 7)).hex(' ', 8)}")
    lines.append(f"full: {messages.pack_full(2, REPORT).hex(' ', 8)}")
    for each in (REPORT, SlotReport(0, 0, 0.0, 0.0, np.zeros(0), np.zeros(0, int))):
        lines.append(f"again: {messages.unpack_full(messages.pack_full(2, each))}")
    lines.append(
        f"{messages.unpack_progress(messages.pack_progress((5, 6, 7)))} {messages.pack_grant(1, None)[-8:].hex()}"
    )
    expected("messages", "\n".join(lines).replace("SlotReport", "\n    SlotReport"))


def test_what_is_no_batch_is_refused():
    whole = messages.pack_full(2, REPORT)
    for message, words in (
        (whole[:80], "FULL has 80 bytes, but needs at least 81"),
        (whole[:-1], f"FULL has {len(whole) - 1} bytes, but 2 episodes and 1 metrics"),
        (whole[:25] + struct.pack("<q", -1) + whole[33:], "-1 episodes and 1 metrics"),
        (whole[:25] + struct.pack("<qq", 0, -1) + whole[41:], "0 episodes and -1 metrics"),
        (whole + b"x", "1 bytes that are not tensors"),
        (whole + messages.pack_tensors(b"x", [1]), "FULL contains list in place of tensors"),
        (whole + messages.pack_tensors(b"x", {"a": torch.ones(1)}), "FULL contains dict in place of tensors"),
        (whole + messages.pack_tensors(b"x", {(): torch.ones(1)}), "FULL contains dict in place of tensors"),
        (whole + messages.pack_tensors(b"x", {("a", 1): torch.ones(1)}), "FULL contains dict in place of tensors"),
        (whole + messages.pack_tensors(b"x", {("a",): 1}), "FULL contains dict in place of tensors"),
    ):
        with pytest.raises(ValueError, match=words):
            messages.unpack_full(message)
    with pytest.raises(Exception, match=r"[Ww]eights.?only"):
        messages.unpack_tensors(messages.pack_tensors(b"x", [os.path.join, object()]))


# --- stacks ---


def test_a_process_that_cannot_write_its_stacks_is_told_so(monkeypatch):
    assert request_stacks(None, None) == ""
    assert request_stacks(2**22 + 1, None) == ""  # there is no such process
    monkeypatch.setattr(tracebacks, "_MAX_S", 0.1)
    memory = os.memfd_create("collectx-stacks")
    text = request_stacks(os.getpid(), None)
    os.close(memory)
    assert text.startswith("Its process did not write its stacks within 0.1 s (state ")
    for state, is_stopped in (("T", True), ("t", True), ("S", False)):
        monkeypatch.setattr(tracebacks, "Path", lambda name, state=state: Stat(name, state))
        words = "is stopped (by SIGSTOP" if is_stopped else "has not started working yet"
        assert words in tracebacks._read(5)


class Stat:
    """The folder of process 5, in this state and without open files."""

    def __init__(self, name, state):
        self.name, self.state = name, state

    def read_text(self):
        assert self.name == "/proc/5/stat"
        return f"5 (a) S (b) {self.state} 1 2"

    def iterdir(self):
        assert self.name == "/proc/5/fd"
        return []
