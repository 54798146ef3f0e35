"""Workers that MPI starts: with `backend=mpi` and `launcher=local`, as a process that the trainer has forked could not
join its MPI universe.

`spawning` is called in the trainer's process, `serve_spawned` in the worker's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from collectx.launcher.base import Place
from collectx.launcher.local import LocalLauncher, settle
from collectx.transport.network.handshake import Endpoint
from collectx.user_objects import Given


def spawning(launcher: LocalLauncher, start_timeout_s: float, given: Callable[[int, int], Given]) -> Place:
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
            "habits": launcher.habits(worker),
            "addresses": endpoint.addresses,
            "port": endpoint.port,
            "secret": endpoint.secret.hex(),
            "worker": worker,
            "start_timeout_s": start_timeout_s,
            # As `multiprocessing` does with what a new process is given.
            "given": pickle.dumps(given(worker, life)).hex(),
        }
        spawn(f"{__name__}:serve_spawned", words)

    return Place(announce=endpoints.append, start=start, describe=launcher.describe)


def serve_spawned(
    habits: dict[str, Any],
    addresses: list[str],
    port: int,
    secret: str,
    worker: int,
    start_timeout_s: float,
    given: str,
) -> None:
    """Works until the trainer says stop."""
    settle(**habits)
    from collectx.collector.worker_entry import serve_remote

    endpoint = Endpoint(tuple(addresses), port, bytes.fromhex(secret))
    serve_remote(endpoint, worker, start_timeout_s, pickle.loads(bytes.fromhex(given)))
