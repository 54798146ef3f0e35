"""Pairs: what is sent arrives whole and in order, receives are posted early, a broken pair says so. Each is two threads
of this process, or two processes where the backend wants it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from collectx.transport.backends import mpi_path, why_not
from collectx.transport.pair import STAMP_BYTES, TRAINER, WORKER, make_pair, set_stamp

HERE = Path(__file__).parent
needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")


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
    worker.send(stamped(5, 1, 1000)).wait()
    incoming.wait()
    assert int(slot[0]) == 5
    trainer.send(torch.full((1000,), 7, dtype=torch.uint8)).wait()
    early.wait()
    assert weights.tolist() == [7] * 1000


def test_nothing_is_done_before_it_is_sent(ends):
    trainer, worker = ends
    slot = torch.zeros(1000 + STAMP_BYTES, dtype=torch.uint8)
    incoming = trainer.receive(slot, 1)
    assert not incoming.done()
    worker.send(stamped(5, 1, 1000)).wait()
    incoming.wait()


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


def test_mpi_is_refused_without_mpi4py(monkeypatch):
    monkeypatch.setattr("collectx.transport.backends.find_spec", lambda name: None)
    assert "mpi4py is not installed: pip install 'collectx[mpi]'" in why_not("mpi")


@needs_mpi
def test_mpi_is_refused_where_it_would_start_no_worker(monkeypatch):
    monkeypatch.delenv("PMIX_NAMESPACE", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("PRTE_ALLOW_RUN_AS_ROOT", raising=False)
    assert "PRTE_ALLOW_RUN_AS_ROOT=1" in why_not("mpi")
    monkeypatch.setattr("collectx.transport.backends.shutil.which", lambda name, path: None)
    assert "prte" in why_not("mpi")


def mpi_environment():
    return os.environ | {
        **{f"{program}_ALLOW_RUN_AS_ROOT": "1" for program in ("PRTE", "OMPI")},
        **{f"{program}_ALLOW_RUN_AS_ROOT_CONFIRM": "1" for program in ("PRTE", "OMPI")},
        "PATH": mpi_path(),
        "PYTHONPATH": str(HERE.parents[1]),
    }


@pytest.mark.ci
@needs_mpi
def test_ranks_of_one_mpi_job_reach_each_other():
    command = ["mpirun", "--oversubscribe", "-n", "2", sys.executable, str(HERE / "mpiranks.py")]
    ended = subprocess.run(command, env=mpi_environment(), capture_output=True, text=True, timeout=250, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split()) == ["0:ok", "1:ok"]


@pytest.mark.ci
@needs_mpi
def test_a_worker_that_mpi_started_is_replaced_and_nothing_is_lost():
    command = [sys.executable, str(HERE.parents[1] / "scripts" / "mpirun.py")]
    ended = subprocess.run(command, env=mpi_environment(), capture_output=True, text=True, timeout=250, check=False)
    assert ended.returncode == 0, ended.stderr
    frames, *names = ended.stdout.split()
    assert int(frames) >= 200 * 30
    assert names.count("worker_joined") == 3
    assert names.count("worker_failed") == names.count("worker_restarted") == 1
