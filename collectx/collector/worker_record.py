"""The trainer's record of one worker, from its first process to its last, and the decision about what follows when the
worker is gone (`collector.on_worker_failure`). `WorkerPool` keeps the records, and carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from collectx.errors import JobEnded
from collectx.place.launcher import AnyHandle
from collectx.transport.base import Reply, Request, Reset
from collectx.worker.spec import ProcessSpec


class RecordState(Enum):
    """Whether a worker takes part in batches; see `collectx.collector.pool`. The inference server is `SERVING`."""

    STARTING = "starting"
    READY = "ready"
    SERVING = "serving"
    DROPPED = "dropped"


@dataclass(eq=False)
class WorkerRecord:
    """A worker: its newest process, and what the trainer's process expects of it.

    Attributes:
        index: among the workers of the collector.
        incarnation: of its newest process; see `collectx.worker.spec.Placement`.
        spec: of its newest process.
        handle: its newest process; None if its end cannot be observed.
        num_restarts: how many of its processes replaced a process that had failed.
        num_requeues: how many replaced a process that a scheduler had ended.
        num_granted: slots that are granted and not full.
        num_frames: frames delivered, in all of its incarnations.
        first_requests: requests without a reply, to which it has to reply before it is ready. They hold the saved state
            that waits for it.
        num_pending: replies to come to other requests; more than one after a call that was interrupted.
        is_awaited: whether its reply to the last `WorkerPool.request` is still to come.
        reply: its reply to that request; None while it is awaited.
        has_replied: whether its newest process has replied to any request: it has made its envs and policy.
        reset: goes with the next slot that it is granted.
        is_server: whether it is the inference server.
    """

    index: int
    incarnation: int
    spec: ProcessSpec = field(init=False)
    state: RecordState | None = None
    handle: AnyHandle | None = None
    num_restarts: int = 0
    num_requeues: int = 0
    num_granted: int = 0
    num_frames: int = 0
    first_requests: Sequence[Request] = ()
    num_pending: int = 0
    is_awaited: bool = False
    reply: Reply | None = None
    has_replied: bool = False
    reset: Reset | None = None
    is_server: bool = False

    @property
    def name(self) -> str:
        """The name of the worker in messages."""
        return "inference server" if self.is_server else f"worker {self.index}"

    def take_reset(self) -> Reset | None:
        """The reset that goes with a slot which is granted now."""
        reset, self.reset = self.reset, None
        return reset


class Action(Enum):
    """The reaction to a worker that is gone.

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
