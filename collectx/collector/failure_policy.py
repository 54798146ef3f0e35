"""`collector.on_worker_failure`: restarts workers that are gone, within limits. In the trainer's process."""

from __future__ import annotations

from collections.abc import Callable


class FailurePolicy:
    """
    Args:
        on_worker_failure: "raise", "restart" or "drop".
        max_restarts: the number of restarts of one run, of all workers together.
        start: `start(worker, restarts)` starts a worker; `restarts` counts those of its index, from 0.
    """

    def __init__(self, on_worker_failure: str, max_restarts: int, start: Callable[[int, int], None]):
        self.mode = on_worker_failure
        self._max_restarts = max_restarts
        self._start = start
        self._restarts: dict[int, int] = {}

    def begin(self, worker: int) -> None:
        """Starts a worker of a new index."""
        self._start(worker, 0)

    def restart(self, worker: int, error: Exception) -> int:
        """Starts a replacement; returns the number of restarts of this index.

        Raises:
            Exception: `error`, if no more restarts are allowed.
        """
        if sum(self._restarts.values()) >= self._max_restarts:
            error.add_note(
                f"worker {worker} was not restarted: collector.max_restarts={self._max_restarts} "
                "is the number of restarts of one run, of all workers together."
            )
            raise error
        self._restarts[worker] = self._restarts.get(worker, 0) + 1
        self._start(worker, self._restarts[worker])
        return self._restarts[worker]
