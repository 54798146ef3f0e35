"""Workers that MPI starts: with `backend=mpi` and `launcher=local`, as a process that the trainer has forked could not
join its MPI universe.

`spawning` is called in the trainer's process, `serve_spawned` in the worker's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from collectx.launcher.base import Launcher
from collectx.launcher.local import LocalLauncher, set_up_process
from collectx.transport.network.handshake import Endpoint
from collectx.user_objects import UserObjects


def spawning(launcher: LocalLauncher, start_timeout_s: float, given: Callable[[int, int], UserObjects]) -> Launcher:
    """A place whose workers are started by MPI, on this machine, one after the other; they have no handle, as they are
    no children of this process. What hangs is ended when the trainer's process ends.

    Args:
        given: `given(worker, life)` is what a worker cannot be told over a connection.
    """
    from collectx.transport.network.mpi import spawn

    endpoints: list[Endpoint] = []

    def start(worker: int, life: int) -> None:
        endpoint = endpoints[0]
        words = {
            "process_setup": launcher.process_setup(worker),
            "addresses": endpoint.addresses,
            "port": endpoint.port,
            "secret": endpoint.secret.hex(),
            "worker": worker,
            "start_timeout_s": start_timeout_s,
            # As `multiprocessing` does with what a new process is given.
            "given": pickle.dumps(given(worker, life)).hex(),
        }
        spawn(f"{__name__}:serve_spawned", words)

    return Launcher(announce=endpoints.append, start=start, describe=launcher.describe)


def serve_spawned(
    process_setup: dict[str, Any],
    addresses: list[str],
    port: int,
    secret: str,
    worker: int,
    start_timeout_s: float,
    given: str,
) -> None:
    """Works until the trainer says stop."""
    set_up_process(**process_setup)
    from collectx.collector.worker_entry import run_remote_worker

    endpoint = Endpoint(tuple(addresses), port, bytes.fromhex(secret))
    run_remote_worker(endpoint, worker, start_timeout_s, pickle.loads(bytes.fromhex(given)))
