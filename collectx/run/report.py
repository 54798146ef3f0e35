"""What the user reads when a run is over: the error, a short table, the path of the run folder.

Called by job.py in the trainer's process after the display is closed. Must not know how a run is done.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from collectx.errors import CollectxError, text_of, traceback_of
from collectx.run.record import type_name
from collectx.run.result import Result, Status
from collectx.run.view import clock, number

_STYLES = {Status.COMPLETED: "green", Status.FAILED: "red", Status.INTERRUPTED: "yellow"}


def log_errors(errors: Sequence[BaseException], log: Path) -> None:
    """Appends the full tracebacks to `log`."""
    if not errors:
        return
    try:
        with open(log, "a") as file:
            for error in errors:
                file.write(traceback_of(error))
    except OSError as error:
        say(f"{log} could not be written: {error}")


def show(result: Result, errors: Sequence[BaseException], log: Path) -> None:
    """Prints the errors to standard error, then the table and the run folder to standard output."""
    for error in errors:
        say(describe(error))
    if errors:
        say(f"full traceback: {log}")
    elif result.status is Status.INTERRUPTED:
        say(result.exit_reason)
    console = Console(highlight=False)
    console.print()
    console.print(table(result))
    # Never wrapped: a path is there to be copied.
    console.print(str(result.folder), soft_wrap=True, markup=False)


def table(result: Result) -> Table:
    """One row: frames, frames/s, mean return, wall time, status."""
    drawn = Table(box=box.SIMPLE, show_edge=False)
    for name in ("frames", "frames/s", "mean return", "wall", "status"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_row(
        f"{result.frames:,}",
        number(result.frames_per_s),
        number(result.mean_return),
        clock(result.wall_s),
        result.status.value,
        style=_STYLES[result.status],
    )
    return drawn


def describe(error: BaseException) -> str:
    """The error as the user should read it: type, message, then where it was raised, with the remote traceback if it
    comes from a worker."""
    text = f"{type_name(error)}: {text_of(error)}"
    notes = list(getattr(error, "__notes__", ()))
    if not notes and not isinstance(error, CollectxError):
        frames = traceback.extract_tb(error.__traceback__)
        notes = [f"raised in {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"] if frames else []
    lines = [line for note in notes for line in note.rstrip().splitlines()]
    return "\n".join([text, *(f"  {line}" for line in lines)])


def say(text: str) -> None:
    """One message to the user on standard error."""
    print(f"collectx: {text}", file=sys.stderr, flush=True)
