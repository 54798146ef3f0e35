"""Pairs: messages arrive whole and in order, receives are posted early, a broken pair raises. Each is two threads of
this process."""

from __future__ import annotations

import socket
import threading
from multiprocessing.connection import Connection
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from collectx.transport import backends
from collectx.transport.backends import why_not
from collectx.transport.pair import STAMP_BYTES, TRAINER, WORKER, make_pair, set_stamp


def connections():
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


@pytest.fixture(params=["127.0.0.1", "::1"])
def ends(request):
    """Both ends of a pair over gloo, in this process, and the connections between them."""
    made, lines = {}, connections()

    def make(rank):
        made[rank] = make_pair("gloo", lines[rank], rank, request.param, 60.0, ("cpu", "cpu"), {})

    threads = [threading.Thread(target=make, args=(rank,)) for rank in (TRAINER, WORKER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    yield made[TRAINER], made[WORKER]
    for pair, line in zip(made.values(), lines, strict=True):
        pair.close()
        line.close()


def stamped(value, stamp, nbytes=100_000):
    buffer = torch.full((nbytes + STAMP_BYTES,), value, dtype=torch.uint8)
    set_stamp(buffer, stamp)
    return buffer


def test_messages_arrive_whole_and_in_order_in_both_directions(ends):
    trainer, worker = ends
    for sender, receiver in ((worker, trainer), (trainer, worker)):
        buffers = [torch.zeros(100_000 + STAMP_BYTES, dtype=torch.uint8) for _ in range(3)]
        incoming = [receiver.receive(buffer, stamp + 1) for stamp, buffer in enumerate(buffers)]
        sent = [stamped(10 + stamp, stamp) for stamp in (1, 2, 3)]
        outgoing = [sender.send(buffer) for buffer in sent]
        for message in outgoing:
            message.wait()
        for message, buffer, wanted in zip(incoming, buffers, sent, strict=True):
            message.wait()
            assert message.done()
            assert torch.equal(buffer, wanted)


def test_a_receive_that_is_posted_early_holds_nothing_up(ends):
    trainer, worker = ends
    weights, slot = torch.zeros(1000, dtype=torch.uint8), torch.zeros(1000 + STAMP_BYTES, dtype=torch.uint8)
    early = worker.receive(weights)
    incoming = trainer.receive(slot, 1)
    assert not incoming.done()
    worker.send(stamped(5, 1, 1000)).wait()
    incoming.wait()
    assert int(slot[0]) == 5
    trainer.send(torch.full((1000,), 7, dtype=torch.uint8)).wait()
    early.wait()
    assert weights.tolist() == [7] * 1000


def test_closing_one_end_fails_what_the_other_waits_for(ends):
    trainer, worker = ends
    incoming = trainer.receive(torch.zeros(1000 + STAMP_BYTES, dtype=torch.uint8), 1)
    worker.close()
    with pytest.raises(RuntimeError):
        incoming.wait()


def test_what_torch_was_built_without_is_refused_with_the_reason():
    assert why_not("gloo") is None
    if torch.version.cuda is None:
        assert "is built without CUDA" in why_not("nccl")
    if not torch.distributed.is_ucc_available():
        assert "is built without UCC" in why_not("ucc")


@pytest.mark.parametrize(
    ("version", "prte", "reason"),
    [
        (None, "prte", "mpi4py is not installed: pip install 'collectx[mpi]'"),
        ("MPICH 4.1, of 2023", "prte", "this is MPICH 4.1: pip install"),
        ("Open MPI v5", None, "by its program prte, which is neither in"),
        ("Open MPI v5", "prte", "set PRTE_ALLOW_RUN_AS_ROOT=1"),
    ],
)
def test_mpi_is_refused_where_it_would_start_no_worker(monkeypatch, version, prte, reason):
    mpi = SimpleNamespace(rc=SimpleNamespace(), Get_library_version=lambda: version)
    for name, value in (("find_spec", version), ("import_module", mpi)):
        monkeypatch.setattr(backends, name, lambda name, value=value: value)
    monkeypatch.setattr(backends.shutil, "which", lambda name, path: prte)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("PMIX_NAMESPACE", "PRTE_ALLOW_RUN_AS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert reason in why_not("mpi")


@pytest.mark.ci  # imports ray
def test_weights_in_rays_store_are_stored_once_and_not_taken_for_those_of_another_collector(monkeypatch):
    pair_ray = pytest.importorskip("collectx.transport.pair_ray")
    puts: list[np.ndarray] = []
    monkeypatch.setattr(pair_ray.ray, "put", lambda array: puts.append(array.copy()) or len(puts))
    memory = np.zeros(128, np.uint8)
    one = torch.from_numpy(memory)
    set_stamp(one, 1)
    assert [pair_ray._stored.object(one) for _ in range(3)] == [1, 1, 1]
    # A collector made later publishes its first version too, from memory that the first one has left.
    memory[:8] = 7
    other = torch.from_numpy(memory)
    assert pair_ray._stored.object(other) == 2
    assert puts[1][0] == 7
    set_stamp(other, 2)
    assert pair_ray._stored.object(other) == 3
