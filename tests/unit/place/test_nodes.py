"""Nodes that SLURM may have lost, and times and counts in its syntax."""

import errno
from types import SimpleNamespace

import pytest

from collectx import process
from collectx.errors import LauncherError
from collectx.place.slurm import commands, job
from collectx.place.slurm.jobs import _seconds


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("2", 120),
        ("2:30", 150),
        ("1:2:30", 3750),
        ("1-0", 86400),
        ("1-2", 93600),
        ("2-1:30", 178200),
        ("1-0:0:30", 86430),
        ("UNLIMITED", None),
        ("1:2:3:4", None),
        ("2-1:2:3:4", None),
        ("", None),
        ("1-", None),
        ("-5", None),
        ("-1:30", None),
        ("1.5", None),
        ("x-1", None),
    ],
)
def test_a_time_in_the_syntax_of_slurm(time, seconds):
    assert _seconds(time) == seconds


@pytest.mark.parametrize(
    ("error", "is_silent"),
    [
        (None, False),
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), False),
        (TimeoutError(), True),
        *((OSError(number, ""), True) for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)),
        (LauncherError("no port"), False),
    ],
)
def test_a_node_where_nothing_answers_seems_lost(monkeypatch, within, error, is_silent):
    def connect(address, timeout):
        assert (address, timeout > 0) == (("n1", 6818), True)
        if error is not None:
            raise error
        return SimpleNamespace(close=lambda: None)

    within(job, "socket", create_connection=connect)
    monkeypatch.setattr(commands, "slurmd", lambda node: (node, 6818))
    monkeypatch.setattr(commands, "down", lambda node: [])
    assert job.seems_lost("n1") is is_silent
    monkeypatch.setattr(commands, "down", lambda node: ["n1"])
    assert job.seems_lost("n1")


@pytest.mark.parametrize(
    ("timeout", "silent", "down_at_s", "is_lost", "waited_s"),
    [
        ("20 sec", True, 0, True, 0),
        ("20 sec", True, 30, True, 30),
        ("20 sec", True, None, False, 50),
        ("", True, None, False, 330),
        ("20 sec", False, None, False, 0),
    ],
)
def test_a_silent_node_is_lost_when_slurm_says_so(monkeypatch, within, timeout, silent, down_at_s, is_lost, waited_s):
    now = [0.0]

    def sleep(seconds):
        now[0] += 1.0

    within(process, "time", monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(job, "_is_silent", lambda node: silent)
    monkeypatch.setattr(commands, "down", lambda node: [node] * (down_at_s is not None and now[0] >= down_at_s))
    monkeypatch.setattr(commands, "settings", lambda: {"SlurmdTimeout": timeout} if timeout else {})
    assert job.is_lost("n1") is is_lost
    assert now[0] == waited_s
