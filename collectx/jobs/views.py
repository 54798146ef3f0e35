"""The display of watched runs: `SingleView` for one run, `SweepView` for several.

Used by watch.py in the main thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.status import Status as Spinner
from rich.table import Table

from collectx.errors import printable
from collectx.jobs.status import RunStatus
from collectx.run import Status
from collectx.run.display import PLAIN_S, Progress, clock, number
from collectx.run.files import JsonLinesTail
from collectx.run.folder import RunFolder
from collectx.run.printing import print_line, table
from collectx.run.statistics import MetricsTail, Sampler


@dataclass
class WatchedRun:
    """A run that is a job, or a process (`job` is None), and the state read from its folder.

    Attributes:
        shows_events: whether the user sees events, such as a restarted worker, when they happen.
        may_requeue: whether SLURM may restart the job.
        since_s: when it last started to wait or to run.
        ended_s: when its end was first seen; None before.
        result_ns: modification time of the result at the last query of SLURM; None before.
    """

    name: str
    files: RunFolder
    job: str | None
    statistics: MetricsTail
    events: JsonLinesTail
    shows_events: bool
    may_requeue: bool = False
    status: RunStatus = field(default_factory=lambda: RunStatus(Status.QUEUED))
    since_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    result_ns: int | None = None

    def __post_init__(self) -> None:
        self.begin(self.since_s)

    def begin(self, now_s: float) -> None:
        """Begins the time and the rate at `now_s`: what was there before is no part of them."""
        self.statistics.update()
        self.since_s = now_s
        self.sampler = Sampler(self.statistics, now_s)

    def result_time_ns(self) -> int | None:
        """When the result was written; None where there is none."""
        try:
            return self.files.result.stat().st_mtime_ns
        except OSError:
            return None


class View:
    """A display of watched runs while the `with` block lasts."""

    def __init__(self) -> None:
        self._console = Console()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None: ...

    def draw(self) -> None:
        """Updates the display."""

    def say(self, text: str) -> None:
        """Prints a line above the display."""
        print_line(self._console, f"collectx: {text}")


class SingleView(View):
    """One run: a spinner while it is queued, then the progress of a run on this machine."""

    def __init__(self, run: WatchedRun):
        super().__init__()
        self._run = run
        self._spinner: Spinner | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        self.draw()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._spinner is not None:
            self._spinner.stop()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def say(self, text: str) -> None:
        super().say(text) if self._progress is None else self._progress.say(text)

    def draw(self) -> None:
        """Updates the spinner; once the run is running, starts the progress display, which a thread draws, and ends it
        where the job is queued again."""
        if self._progress is not None:
            if self._run.status.status is not Status.QUEUED:
                return
            self._progress.__exit__(None, None, None)
            self._progress = None
        if self._run.status.status is Status.RUNNING:
            if self._spinner is not None:
                self._spinner.stop()
                self._spinner = None
            self._progress = Progress(self._run.statistics, start_s=self._run.since_s)
            self._progress.__enter__()
        elif self._console.is_terminal:
            text = (
                f"job {printable(str(self._run.job))} is in the queue for {clock(time.monotonic() - self._run.since_s)}"
            )
            if self._spinner is None:
                self._spinner = self._console.status(text, refresh_per_second=4)
                self._spinner.start()
            self._spinner.update(text)


class SweepView(View):
    """Several runs: a table on a terminal, elsewhere a line with the sums every few seconds."""

    def __init__(self, runs: Sequence[WatchedRun]):
        super().__init__()
        self._runs = runs
        self._live: Live | None = None
        self._last_s = time.monotonic()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif time.monotonic() > self._last_s + PLAIN_S:
            self._last_s = time.monotonic()
            statuses = [run.status.status for run in self._runs]
            frames = sum(run.statistics.frames for run in self._runs)
            counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
            print_line(self._console, f"{counts}; {frames:,} frames")

    def _table(self) -> Table:
        rows, now_s = [], time.monotonic()
        for run in self._runs:
            state = str(run.status.status)
            if run.status.status is Status.QUEUED and run.status.detail:
                state += f" ({run.status.detail.partition(':')[0]})"
            elapsed = "" if run.status.has_ended else clock(now_s - run.since_s)
            rate = None if run.status.has_ended else run.sampler.view(now_s).now_per_s
            numbers = (f"{run.statistics.frames:,}", number(rate), number(run.statistics.mean_return))
            rows.append((run.name, run.job or "", state, elapsed, *numbers))
        head = ("point", "job", "state", "for", "frames", "frames/s", "return")
        return table(rows, head, 3, box=None, header_style="dim")
