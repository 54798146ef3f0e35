"""Starts workers through MPI, for `backend=mpi` with `launcher=local`: a forked process cannot join the trainer's MPI
universe.

`MpiLauncher` is used in the trainer's process, `run_spawned` in the worker's.
"""

from __future__ import annotations

import pickle
from typing import Any

from collectx.launcher.local import LocalLauncher, set_up_process


class MpiLauncher(LocalLauncher):
    """Starts workers on this machine, one after the other. They have no handle, as they are not children of this
    process; a worker that hangs ends with the trainer's process."""

    def start(self, worker: int, life: int) -> None:
        from collectx.transport.network.mpi import spawn

        # Pickled as `multiprocessing` pickles the arguments of a new process; MPI's messages are JSON.
        call = pickle.dumps(self._entry(worker, life)).hex()
        spawn(f"{__name__}:run_spawned", {"process_setup": self.process_setup(worker), "call": call})


def run_spawned(process_setup: dict[str, Any], call: str) -> None:
    """The main function of a spawned process."""
    set_up_process(**process_setup)
    function, arguments = pickle.loads(bytes.fromhex(call))
    function(*arguments)
