"""The trainer's end of a network, with stand-ins for the workers."""

import socket
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from collectx.transport.network.transport import NetworkTransport


def test_an_interrupt_ends_the_connections_of_workers_and_leaves_their_descriptors():
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    closed, other = (Connection(end.detach()) for end in socket.socketpair())
    other.close()
    with ours, theirs, closed:
        peers = [SimpleNamespace(connection=closed), SimpleNamespace(connection=ours)]
        NetworkTransport.interrupt(SimpleNamespace(_joined=lambda: peers))
        assert theirs.poll(5)
        with pytest.raises(EOFError):
            theirs.recv_bytes()
        assert not ours.closed
