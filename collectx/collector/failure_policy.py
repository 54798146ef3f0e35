"""What becomes of workers that are gone. In the trainer's process."""

from __future__ import annotations

from collections.abc import Callable


class FailurePolicy:
    """What to do about workers that are gone.

    Args:
        on_worker_failure: "raise", "restart" or "drop".
        max_restarts: how many workers may be started again in one run, all together.
        start: starts another worker of that index; its second argument counts its lives, 0 being the first.
    """

    def __init__(self, on_worker_failure: str, max_restarts: int, start: Callable[[int, int], None]):
        self.mode = on_worker_failure
        self._max_restarts = max_restarts
        self._start = start
        self._lives: dict[int, int] = {}

    def begin(self, worker: int) -> None:
        """Starts a worker of an index that there was none of."""
        self._start(worker, 0)

    def restart(self, worker: int, error: Exception) -> int:
        """Starts another; returns which life of this index it has.

        Raises:
            Exception: `error`, where no more restarts are allowed.
        """
        if sum(self._lives.values()) >= self._max_restarts:
            error.add_note(
                f"worker {worker} was not started again: collector.max_restarts={self._max_restarts} "
                "is the number of restarts of one run, of all workers together."
            )
            raise error
        self._lives[worker] = self._lives.get(worker, 0) + 1
        self._start(worker, self._lives[worker])
        return self._lives[worker]
