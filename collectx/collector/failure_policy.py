"""The lives of workers, and `collector.on_worker_failure`: restarts workers that are gone, within limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from collectx.errors import JobEnded


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
        min_workers: no worker is dropped if fewer would be left.
        max_requeues: how often each worker is started again after a scheduler has ended its job, which is not a
            failure.

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
        min_workers: int = 1,
        max_requeues: int = 0,
    ):
        self._mode = on_worker_failure
        self._max_restarts = self._restarts_left = max_restarts
        # The most lives of one worker.
        self._num_lives = max_restarts + max_requeues + 1
        self._num_workers = num_workers
        self._start = start
        self._first_lives = first_lives
        self._min_workers = min_workers
        self._max_requeues = max_requeues
        self._requeues: Counter[int] = Counter()
        self.lives: dict[int, int] = {}

    def begin(self) -> int:
        """Starts the next worker, of the lowest unused index; returns its index."""
        worker = len(self.lives)
        life = self._first_lives.get(worker, worker // self._num_workers * self._num_lives)
        self._start(worker, life)
        self.lives[worker] = life
        return worker

    def replace(self, worker: int, error: Exception, num_others: int) -> int | None:
        """Starts a replacement for a worker that is gone, and returns its life; None if the worker is dropped. Raises
        `error` if the run ends.

        Args:
            num_others: how many workers are left.
        """
        if isinstance(error, JobEnded) and self._max_requeues:
            if self._requeues[worker] < self._max_requeues:
                self._requeues[worker] += 1
                return self._begin_next_life(worker)
            error.add_note(f"worker {worker} was submitted launcher.max_requeues={self._max_requeues} times again.")
        if self._mode == "raise":
            raise error
        if self._mode == "drop":
            if num_others >= self._min_workers:
                return None
            error.add_note(
                f"worker {worker} was not dropped: {num_others} workers would be left, and "
                f"collector.min_workers={self._min_workers}."
            )
            raise error
        if not self._restarts_left:
            error.add_note(
                f"worker {worker} was not restarted: collector.max_restarts={self._max_restarts} "
                "is the number of restarts of one run, of all workers together."
            )
            raise error
        self._restarts_left -= 1
        return self._begin_next_life(worker)

    def _begin_next_life(self, worker: int) -> int:
        self.lives[worker] += 1
        self._start(worker, self.lives[worker])
        return self.lives[worker]
