"""How a run ended, as plain data: what `result.json` says and what the command line turns into an exit status.

Made by job.py in the trainer's process. Must not know how the run was done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Status(StrEnum):
    """How a run ended; the value is the word in `result.json`."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong.

    Attributes:
        type: the exception's type, qualified by its module unless built in; where the run has survived the loss of a
            worker, the type's name alone.
        message: what it says.
        worker: index of the worker it happened in; None for the trainer.
    """

    type: str
    message: str
    worker: int | None = None


@dataclass(frozen=True)
class Result:
    """The end of one run.

    Attributes:
        status: see `Status`.
        exit_reason: one sentence.
        frames, batches: what the trainer was given.
        wall_s: from the command's start to the end of the run.
        start_s: from the command's start to the first delivered batch; None where there was none.
        frames_per_s: frames after the first delivered batch, by the time from the first delivery to the last; None with
            fewer than two batches.
        mean_return: mean return of the last 100 finished episodes; None where none finished.
        num_episodes: finished episodes.
        digest: over all delivered batches in order; None where they are not hashed (`trainer.digest`).
        failures: what went wrong: the cause of the end first, at last the losses of workers that the run has survived.
        folder: the run folder.
    """

    status: Status
    exit_reason: str
    frames: int
    batches: int
    wall_s: float
    start_s: float | None
    frames_per_s: float | None
    mean_return: float | None
    num_episodes: int
    digest: str | None
    failures: tuple[Failure, ...]
    folder: Path

    @property
    def exit_status(self) -> int:
        """What the command exits with: 0 completed, 1 failed, 130 interrupted."""
        return {Status.COMPLETED: 0, Status.FAILED: 1, Status.INTERRUPTED: 130}[self.status]

    def as_json(self) -> dict[str, Any]:
        """The content of `result.json`."""
        content = asdict(self) | {"status": self.status.value}
        # A run folder may be moved.
        del content["folder"]
        content["failures"] = [
            {key: value for key, value in asdict(failure).items() if value is not None} for failure in self.failures
        ]
        return content
