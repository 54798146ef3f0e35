"""`collector.on_worker_failure`: what happens when a worker is gone. Decisions only; `WorkerPool` carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from collectx.collector.record import WorkerRecord
from collectx.errors import JobEnded


class Action(Enum):
    """What to do about a worker that is gone.

    RESTART: start a replacement, which counts as a restart.
    REQUEUE: start a replacement; a scheduler has ended the worker's job, which is not a failure.
    DROP: continue without it.
    END_RUN: raise the error.
    """

    RESTART = "restart"
    REQUEUE = "requeue"
    DROP = "drop"
    END_RUN = "end_run"


@dataclass(frozen=True)
class FailurePolicy:
    """Decides what happens when a worker is gone.

    Attributes:
        on_worker_failure: "raise", "restart" or "drop".
        max_restarts: the number of restarts of one run, of all workers together.
        min_workers: no worker is dropped if fewer would be left.
        max_requeues: how often each worker is started again after a scheduler has ended its job.
    """

    on_worker_failure: str
    max_restarts: int
    min_workers: int = 1
    max_requeues: int = 0

    @property
    def max_incarnations(self) -> int:
        """The largest number of incarnations of one worker."""
        return self.max_restarts + self.max_requeues + 1

    def decide(self, worker: WorkerRecord, error: Exception, num_others: int, num_restarts: int) -> Action:
        """Returns the action. Adds a note to the error if a limit is the reason for ending the run.

        Args:
            num_others: how many workers are left.
            num_restarts: how many restarts the run has had.
        """
        if isinstance(error, JobEnded) and self.max_requeues:
            if worker.num_requeues < self.max_requeues:
                return Action.REQUEUE
            error.add_note(f"{worker.name} was submitted launcher.max_requeues={self.max_requeues} times again.")
        if self.on_worker_failure == "drop":
            if num_others >= self.min_workers:
                return Action.DROP
            error.add_note(
                f"{worker.name} was not dropped: {num_others} workers would be left, and "
                f"collector.min_workers={self.min_workers}."
            )
        elif self.on_worker_failure == "restart":
            if num_restarts < self.max_restarts:
                return Action.RESTART
            error.add_note(
                f"{worker.name} was not restarted: collector.max_restarts={self.max_restarts} "
                "is the number of restarts of one run, of all workers together."
            )
        return Action.END_RUN
