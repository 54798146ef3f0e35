"""The trainer's end of a network, with stand-ins for the workers."""

import socket
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
import torch
from user_code.toyworker import NUMBER, batch_spec

from collectx.transport.base import Arrival
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


def test_slots_are_gathered_into_one_batch_and_one_alone_is_copied_only_where_one_must():
    spec = batch_spec()
    layout = spec.layout(1)
    memory = {(worker, 1): torch.zeros(layout.nbytes + 64, dtype=torch.uint8) for worker in (0, 1)}
    for (worker, _), each in memory.items():
        layout.slot(each[: layout.nbytes]).tensors[NUMBER].fill_(worker + 3)
    transport = SimpleNamespace(_memory=memory, _layout=layout, spec=spec)
    first, second = (Arrival(worker, 1, None) for worker in (0, 1))
    alone, copy = (NetworkTransport.gather(transport, [second], copy) for copy in (False, True))
    assert alone.data_ptr() == memory[1, 1].data_ptr() != copy.data_ptr()
    assert len(alone) == layout.nbytes
    assert torch.equal(alone, copy)
    both = spec.layout(2).slot(NetworkTransport.gather(transport, [first, second], False)).tensors[NUMBER]
    assert both.reshape(2, -1).unique(dim=1).tolist() == [[3], [4]]
