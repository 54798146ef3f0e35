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
    """What a scheduler says about a job.

    Attributes:
        word: its state in the scheduler's own word, as PENDING.
        is_over: whether it has ended and will not run again.
        has_started: whether it is running, or was.
        reason: why it is in that state, where the scheduler says so.
        node: where it runs, or ran; empty while it waits.
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
    """What is needed of a scheduler; every call may take seconds."""

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """Submits one job for each worker; returns their ids. Raises LauncherError: it was refused."""

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """What is known of the jobs; those that the scheduler has forgotten are left out. Raises LauncherError: it does
        not answer."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """Ends the jobs; those that have ended are left alone. Raises LauncherError: it does not answer."""


class JobHandle:
    """One life of one worker: the handle that the collector holds (`collectx.transport.processes.Handle`). Nothing
    here blocks; `join` does not wait, as an end is only known when the scheduler tells.

    Attributes:
        worker: its index.
        id: the scheduler's name of the job; None while it is not submitted.
        state: what the scheduler said last.
        sentinel: a descriptor that becomes readable when the job is over.
        pid: None: it is no process of this machine.
    """

    pid = None

    def __init__(self, worker: int, release: Callable[[JobHandle], None]):
        self.worker = worker
        self.id: str | None = None
        self.state = JobState("NOT SUBMITTED", False, False)
        self.wanted_since_s = time.monotonic()
        self.sentinel, self._end = os.pipe()
        self._release = release
        # Until when it may end by itself; None while it is wanted.
        self.released_until_s: float | None = None
        self.submit_at_s = 0.0

    def __str__(self) -> str:
        return f"job {self.id}: {self.state}" if self.id else f"no job: {self.state}"

    @property
    def exitcode(self) -> int | None:
        """None while it may live, 0 where it has completed, otherwise 1."""
        if not self.state.is_over:
            return None
        return 0 if self.state.word == "COMPLETED" else 1

    def join(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def terminate(self) -> None:
        """Nobody wants it any more: it is cancelled, if it does not end by itself soon."""
        self._release(self)

    kill = terminate

    def become(self, state: JobState) -> bool:
        """Takes in what the scheduler says; whether that is news."""
        if state == self.state:
            return False
        was_over, self.state = self.state.is_over, state
        if state.is_over and not was_over:
            os.close(self._end)
        return True

    def close(self) -> None:
        """Gives its descriptors back."""
        if not self.state.is_over:
            os.close(self._end)
        os.close(self.sentinel)


def ending(log: Path, has_failed: bool = True) -> str:
    """The last line of a log that says something, to stand behind its name: an exit code says nothing that is not
    known. A missing log is a hint only where the job itself has failed; SLURM or the job's shell begins each log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return _NO_LOG if has_failed else ""
    last = next((line.strip() for line in reversed(lines) if line.strip() and "exit code" not in line.lower()), "")
    return f", which ends: {last}" if last else ""
