"""The launcher interface: where the workers of a collector run, and how they are started and named in messages.

Implemented by the modules of this package; used by the collector, in the trainer's process. Does not depend on what a
worker does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from collectx.transport.batch_timers import Limit
from collectx.transport.network.handshake import Endpoint

# `entry(worker, life)` returns the function that a worker calls, and its arguments.
Entry: TypeAlias = Callable[[int, int], tuple[Callable[..., Any], tuple[Any, ...]]]


class Launcher:
    """Starts the workers of one collector.

    Args:
        announce: called with the trainer's endpoint, which it publishes for workers that other programs start, before
            the first worker is started. None: the arguments of workers contain the endpoint.
        join_timeout: how long a worker may take to connect, before the time for its first batch begins; None:
            `collector.start_timeout_s` covers both.

    Attributes:
        is_local: whether every worker runs on this machine.
    """

    is_local = False

    def __init__(self, announce: Callable[[Endpoint], None] | None = None, join_timeout: Limit | None = None):
        self._announce = announce
        self._join_timeout = join_timeout

    def prepare(self, entry: Entry, endpoint: Endpoint | None = None) -> None:
        """Called once, before the first `start`.

        Args:
            entry: what workers call that this process starts.
            endpoint: where the trainer listens; None if workers do not connect over a network.
        """
        self._entry = entry
        if self._announce is not None and endpoint is not None:
            self._announce(endpoint)

    def start(self, worker: int, life: int) -> Any:
        """Starts a worker; `life` is 0 for its first process. Returns its handle, or None if
        its end cannot be observed. The handle is a `collectx.transport.processes.Handle`; of an inline worker, a
        generator."""
        raise NotImplementedError

    def describe(self, worker: int) -> str:
        """Names a worker in messages."""
        return f"worker {worker}"

    def join_timeout(self, worker: int) -> Limit | None:
        """How long `worker` may take to connect; see `Launcher`."""
        return self._join_timeout


class WaitingWorkers(Launcher):
    """Workers that were started before the trainer, and wait for its announcement. They are not replaced.

    Args:
        log: the log file of a worker.
        announce, join_timeout: see `Launcher`.
    """

    def __init__(self, log: Callable[[int], Path], announce: Callable[[Endpoint], None], join_timeout: Limit):
        super().__init__(announce, join_timeout)
        self._log = log

    def start(self, worker: int, life: int) -> None:
        """Nothing: the worker is running, or in a scheduler's queue."""

    def describe(self, worker: int) -> str:
        return f"worker {worker} (log: {self._log(worker)})"
