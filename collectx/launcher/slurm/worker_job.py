"""A worker as a job of a scheduler: its state, its handle, its log. Used by the launchers of SLURM."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LAST_WORDS_BYTES = 2000
_NO_LOG = ", which does not exist: the run folder must be on a file system that all nodes share (hydra.run.dir)"


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        word: the scheduler's name of the state, such as PENDING.
        is_over: whether the job has ended for good; a requeued job has not.
        has_started: whether it is running or has run.
        reason: the scheduler's reason for the state; may be empty.
        node: where it runs or has run; empty while it is pending.
    """

    word: str
    is_over: bool
    has_started: bool
    reason: str = ""
    node: str = ""

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.word}{reason}{f' on {self.node}' if self.node else ''}"


class Scheduler(Protocol):
    """A scheduler. Every call may block for seconds."""

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """Submits one job for each worker; returns the job ids by worker. Raises LauncherError: it was refused."""

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Returns the states of jobs, without jobs that the scheduler has forgotten. Raises LauncherError: it does not
        answer."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """Ends the jobs that have not ended. Raises LauncherError: it does not answer."""


class JobHandle:
    """The handle of one life of a worker (`collectx.transport.processes.Handle`). No method blocks, not even `join`, as
    the end of a job is known late.

    Attributes:
        worker: its index.
        id: the job's id; None until it is submitted.
        state: the last known state.
        sentinel: a descriptor that becomes readable when the job is over.
        pid: None, as it is not a process of this machine.
    """

    pid = None

    def __init__(self, worker: int, release: Callable[[JobHandle], None]):
        self.worker = worker
        self.id: str | None = None
        self.state = JobState("NOT SUBMITTED", False, False)
        self.created_s = time.monotonic()
        self.sentinel, self._end = os.pipe()
        self._release = release
        # When its grace period ends; None while it is needed.
        self.released_until_s: float | None = None
        self.submit_at_s = 0.0

    def __str__(self) -> str:
        return f"job {self.id}: {self.state}" if self.id else f"no job: {self.state}"

    @property
    def exitcode(self) -> int | None:
        """None until it has ended; then 0 if it has completed, otherwise 1."""
        if not self.state.is_over:
            return None
        return 0 if self.state.word == "COMPLETED" else 1

    def join(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def terminate(self) -> None:
        """Cancels the job if it does not end by itself within the grace period."""
        self._release(self)

    kill = terminate

    def become(self, state: JobState) -> bool:
        """Sets the state; returns whether it has changed."""
        if state == self.state:
            return False
        was_over, self.state = self.state.is_over, state
        if state.is_over and not was_over:
            os.close(self._end)
        return True

    def close(self) -> None:
        """Closes its descriptors."""
        if not self.state.is_over:
            os.close(self._end)
        os.close(self.sentinel)


def ending(log: Path, has_failed: bool = True) -> str:
    """The last informative line of a log, for messages that name the log. A missing log is reported only if the job has
    failed: SLURM or the job's shell creates it."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return _NO_LOG if has_failed else ""
    last = next((line.strip() for line in reversed(lines) if line.strip() and "exit code" not in line.lower()), "")
    return f", which ends: {last}" if last else ""
