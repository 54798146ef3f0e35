"""`collector.on_worker_failure`: restarts workers that are gone, within limits. In the trainer's process."""

from __future__ import annotations

from collections.abc import Callable


class FailurePolicy:
    """Restarts or drops workers that are gone, or ends the run.

    Args:
        on_worker_failure: "raise", "restart" or "drop".
        max_restarts: the number of restarts of one run, of all workers together.
        start: `start(worker, restarts)` starts a worker; `restarts` counts those of its index, from 0.
    """

    def __init__(self, on_worker_failure: str, max_restarts: int, start: Callable[[int, int], None]):
        self._mode = on_worker_failure
        self._max_restarts = max_restarts
        self._start = start
        self._restarts: dict[int, int] = {}

    def begin(self, worker: int) -> None:
        """Starts a worker of a new index."""
        self._start(worker, 0)

    def replace(self, worker: int, error: Exception, is_last: bool) -> int | None:
        """Starts a replacement for a worker that is gone.

        Args:
            error: why it is gone.
            is_last: whether no other worker is left.

        Returns:
            The number of restarts of this index; None: the worker is dropped.

        Raises:
            Exception: `error`, if the run ends.
        """
        if self._mode == "raise" or (self._mode == "drop" and is_last):
            raise error
        if self._mode == "drop":
            return None
        if sum(self._restarts.values()) >= self._max_restarts:
            error.add_note(
                f"worker {worker} was not restarted: collector.max_restarts={self._max_restarts} "
                "is the number of restarts of one run, of all workers together."
            )
            raise error
        self._restarts[worker] = self._restarts.get(worker, 0) + 1
        self._start(worker, self._restarts[worker])
        return self._restarts[worker]
