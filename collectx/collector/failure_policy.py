"""The lives of workers, and `collector.on_worker_failure`: restarts workers that are gone, within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class FailurePolicy:
    """Starts workers; restarts or drops those that are gone, or ends the run.

    A `life` is one sequence of seeds and trajectory ids of a worker (`collectx.worker.spec.WorkerSpec`); a restart
    begins the next one. An added worker has the envs of one of the first workers, in lives that no other worker has.

    Args:
        on_worker_failure: "raise", "restart" or "drop".
        max_restarts: the number of restarts of one run, of all workers together.
        num_workers: how many workers the run begins with.
        start: `start(worker, life)` starts a worker.
        first_lives: the lives with which workers begin, by index; 0 where there is none.

    Attributes:
        lives: the newest life of each worker.
    """

    def __init__(
        self,
        on_worker_failure: str,
        max_restarts: int,
        num_workers: int,
        start: Callable[[int, int], None],
        first_lives: Mapping[int, int],
    ):
        self._mode = on_worker_failure
        self._max_restarts = self._restarts_left = max_restarts
        self._num_workers = num_workers
        self._start = start
        self._first_lives = first_lives
        self.lives: dict[int, int] = {}

    def begin(self) -> int:
        """Starts the next worker, of the lowest unused index; returns its index."""
        worker = len(self.lives)
        life = self._first_lives.get(worker, worker // self._num_workers * (self._max_restarts + 1))
        self._start(worker, life)
        self.lives[worker] = life
        return worker

    def replace(self, worker: int, error: Exception, is_last: bool) -> int | None:
        """Starts a replacement for a worker that is gone, and returns its life; None if the worker is dropped. Raises
        `error` if the run ends.

        Args:
            is_last: whether no other worker is left.
        """
        if self._mode == "raise" or (self._mode == "drop" and is_last):
            raise error
        if self._mode == "drop":
            return None
        if not self._restarts_left:
            error.add_note(
                f"worker {worker} was not restarted: collector.max_restarts={self._max_restarts} "
                "is the number of restarts of one run, of all workers together."
            )
            raise error
        self._restarts_left -= 1
        self.lives[worker] += 1
        self._start(worker, self.lives[worker])
        return self.lives[worker]
