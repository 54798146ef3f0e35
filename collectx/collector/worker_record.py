"""The trainer's record of one worker, from its first process to its last, and the decision about what happens when the
worker is gone (`collector.on_worker_failure`). `WorkerPool` keeps the records and carries out the decisions.
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
        index: the worker's index in the collector.
        incarnation: the newest process's incarnation; see `collectx.worker.spec.Placement`.
        spec: the newest process's spec.
        handle: the newest process; None if its end cannot be observed.
        num_restarts: number of processes that replaced a failed one.
        num_requeues: number of processes that replaced one whose job a scheduler had ended.
        num_granted: number of granted slots that are not full.
        num_frames: frames delivered, in all incarnations.
        first_requests: unanswered requests to which the worker must reply before it is ready. They contain the saved
            state that waits for the worker.
        settings_version: the newest process has all settings up to this one, or has been sent them.
        num_settings: number of missing replies to settings that the newest process was sent when it was started.
        num_pending: number of missing replies to other requests; more than one after an interrupted call.
        is_awaited: whether the reply to the last `WorkerPool.request` is missing.
        reply: the reply to this request; None while it is missing.
        has_replied: whether the newest process has replied to any request, and so has made its envs and policy.
        reset: a reset that is sent with the worker's next granted slot.
        is_server: whether this is the inference server.
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
    settings_version: int = 0
    num_settings: int = 0
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
        """Returns the reset to send with the slot that is being granted, and forgets it."""
        reset, self.reset = self.reset, None
        return reset


class Action(Enum):
    """The reaction to a lost worker.

    RESTART: start a replacement, which counts as a restart.
    REQUEUE: start a replacement; a scheduler ended the worker's job, which is not a failure.
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
        max_restarts: maximum number of restarts in a run, for all workers together.
        min_workers: no worker is dropped if fewer would be left.
        max_requeues: how often each worker is started again after a scheduler ended its job.
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
            num_others: number of workers that are left.
            num_restarts: number of restarts in the run so far.
        """
        if isinstance(error, JobEnded) and self.max_requeues:
            if worker.num_requeues < self.max_requeues:
                return Action.REQUEUE
            error.add_note(f"{worker.name} was already requeued {self.max_requeues} times (launcher.max_requeues).")
        if self.on_worker_failure == "drop":
            if num_others >= self.min_workers:
                return Action.DROP
            error.add_note(
                f"{worker.name} was not dropped: only {num_others} workers would be left, and "
                f"collector.min_workers={self.min_workers}."
            )
        elif self.on_worker_failure == "restart":
            if num_restarts < self.max_restarts:
                return Action.RESTART
            error.add_note(
                f"{worker.name} was not restarted: the run used all {self.max_restarts} restarts "
                "(collector.max_restarts, for all workers together)."
            )
        return Action.END_RUN
