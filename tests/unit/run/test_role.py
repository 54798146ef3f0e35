"""What roles of a job leave for each other in the run folder."""

from __future__ import annotations

import os
import stat

import pytest

from collectx.errors import RendezvousError
from collectx.run import role
from collectx.transport.rendezvous import Meeting

MEETING = Meeting(("127.0.0.1",), 4000, b"secret")


def test_the_secret_is_for_the_owner_alone_whatever_the_umask(folder):
    before = os.umask(0)
    try:
        role.announce(folder, MEETING, "7.0")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.secret.stat().st_mode) == 0o600
    assert b"secret" not in folder.rendezvous.read_bytes()
    assert role.find(folder, "7.0", "knob", 0.0) == MEETING


def test_the_address_of_another_start_is_not_taken(folder):
    role.announce(folder, MEETING, "6.0")
    with pytest.raises(RendezvousError, match=r"within 0 s \(knob=0\)"):
        role.find(folder, "7.0", "knob", 0.0)
