"""Starts workers through MPI, for `backend=mpi` with `launcher=local`, because a forked process cannot join the
trainer's MPI universe. Imports mpi4py.

A worker's process runs `serve`.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import numpy as np

from collectx.fork_server.start import environment
from collectx.place.launcher import AnyHandle, Entry
from collectx.place.local_launcher import LocalLauncher, set_up_process
from collectx.transport.network.mpi import MPI, initialize, mpi_path, spawned


class MpiLauncher(LocalLauncher):
    """Starts workers on this machine, one after another. There are no handles, as the workers are not children of this
    process; a hung worker ends with the trainer's process."""

    def start(self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None) -> None:
        """Starts a process; blocks until it has initialised MPI, a second. Raises `RuntimeError` if it cannot."""
        initialize()
        with environment(PATH=mpi_path()):
            child = MPI.COMM_SELF.Spawn(sys.executable, ["-c", f"from {__name__} import serve; serve()"], maxprocs=1)
        child.Set_errhandler(MPI.ERRORS_RETURN)
        _send(child, pickle.dumps((sys.path, self.process_setup(worker))))
        # Its pickle may refer to modules on this process's path.
        _send(child, pickle.dumps(entry))
        spawned[_receive(child).decode()] = child


def serve() -> None:
    """Runs the worker in a spawned process. `MpiLauncher.start` waits until this has initialised MPI."""
    initialize()
    parent = MPI.Comm.Get_parent()
    sys.path[:], process_setup = pickle.loads(_receive(parent))
    call = _receive(parent)
    _send(parent, os.environ["PMIX_NAMESPACE"].encode())
    set_up_process(**process_setup)
    function, arguments = pickle.loads(call)
    function(*arguments)


def _send(peer: Any, content: bytes) -> None:
    peer.Send([np.array([len(content)], np.int64), MPI.INT64_T], dest=0)
    peer.Send([np.frombuffer(content, np.uint8), MPI.BYTE], dest=0)


def _receive(peer: Any) -> bytes:
    length = np.zeros(1, np.int64)
    peer.Recv([length, MPI.INT64_T], source=0)
    content = np.zeros(int(length[0]), np.uint8)
    peer.Recv([content, MPI.BYTE], source=0)
    return content.tobytes()
