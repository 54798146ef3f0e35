"""The runs of a `Watcher`, and their display."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from collectx.config.derived import expected_frames
from collectx.errors import DamagedFileError
from collectx.jobs.status import NamedRun, RunStatus
from collectx.run import Status
from collectx.run.folder.files import JsonLinesTail
from collectx.run.statistics import MetricsTail, RateWindow, View
from collectx.run.terminal.charts import sparkline
from collectx.run.terminal.display import PLAIN_S, Lines, charts_of, render_panel, title_of
from collectx.run.terminal.printing import clock, number, print_line, table


class WatchedRun:
    """A run that is a job, or a process (`job` is None), and the state that its folder shows.

    Attributes:
        shows_events: whether the user sees events, such as a restarted worker, at once.
        since_s: when the run last began to wait or to run.
        ended_s: when its end was first seen; None before.
        result_ns: modification time of the result at the last query; None before.
        damage: why a file of the run could not be read, the first time; "" if it could.
    """

    def __init__(self, run: NamedRun, job: str | None):
        self.name, self.job, self.run_folder = run.name, job, run.run_folder
        target_return = getattr(run.cfg.trainer, "target_return", None)
        self.statistics = MetricsTail(
            self.run_folder.metrics, run.cfg.collector.total_frames, target_return, expected_frames(run.cfg)
        )
        self.title = title_of(run.cfg, self.run_folder.path, self.run_folder.read_meta().get("argv", ()))
        self.events = JsonLinesTail(self.run_folder.events)
        # With "raise", the error is shown at the end.
        self.shows_events = run.cfg.collector.on_worker_failure != "raise"
        self.may_requeue: bool = getattr(run.cfg.launcher, "requeue", False)
        self.status = RunStatus(Status.QUEUED if job else Status.RUNNING)
        self.ended_s: float | None = None
        self.result_ns: int | None = None
        self.damage = ""
        self.begin(time.monotonic() - (self.age_s() if job is None else 0.0))

    def begin(self, now_s: float) -> None:
        """Restarts time and rate at `now_s`; earlier batches no longer count in the rate."""
        self.update()
        self.statistics.rate = None  # of the last batch before
        self.since_s = now_s
        self.window = RateWindow(self.statistics, now_s)

    def view(self, now_s: float) -> View:
        """Returns the view at `now_s`; of a run that has ended, with its duration in place of its age."""
        view = self.window.view(now_s)
        with suppress(DamagedFileError, KeyError, TypeError):
            if self.status.has_ended and (result := self.run_folder.read_result()) is not None:
                return replace(view, elapsed_s=float(result["wall_s"]))
        return view

    def update(self) -> None:
        """Reads the lines of batches that the run has added; skips those that are read with a damaged one."""
        try:
            self.statistics.update()
        except DamagedFileError as error:
            self.damage = self.damage or str(error)

    def read_events(self) -> list[dict[str, Any]]:
        """Returns the events that the run has added; none if one of them is damaged."""
        try:
            return self.events.read()[0]
        except DamagedFileError as error:
            self.damage = self.damage or str(error)
            return []

    def age_s(self) -> float:
        """Seconds since the run began, or was resumed; 0 if its folder does not tell."""
        with suppress(KeyError, TypeError, ValueError):
            began = datetime.strptime(self.run_folder.read_meta()["time"], "%Y-%m-%dT%H:%M:%S%z")
            return max(0.0, (datetime.now(began.tzinfo) - began).total_seconds())
        return 0.0

    def result_time_ns(self) -> int | None:
        """Returns when the result was written; None without one."""
        try:
            return self.run_folder.result.stat().st_mtime_ns
        except OSError:
            return None


class RunsDisplay:
    """Shows runs within a `with` block. One run: its progress, whose last state remains. Several runs: a table on a
    terminal, elsewhere a line of totals every few seconds."""

    def __init__(self, runs: Sequence[WatchedRun], foot: str = ""):
        """`foot` says what Ctrl-C does."""
        self._runs = runs
        self._foot = foot
        self._last_s = time.monotonic()
        self._console = Console()
        self._lines = Lines(self._console)
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        has_progress = len(self._runs) == 1 and self._runs[0].statistics.batches > 0
        if self._live is not None:
            self._live.transient = not has_progress
            self._live.stop()
        elif has_progress:
            self._print_line(is_last=True)

    def draw(self) -> None:
        if self._live is not None:
            panel = self._panel(self._runs[0]) if len(self._runs) == 1 else self._table()
            self._live.update(panel, refresh=True)
        elif time.monotonic() > self._last_s + PLAIN_S:
            self._last_s = time.monotonic()
            self._print_line()

    def say(self, text: str) -> None:
        """Prints a line above the display."""
        print_line(self._console, f"collectx: {text}")

    def _panel(self, run: WatchedRun) -> RenderableType:
        now_s = time.monotonic()
        if run.status.status is Status.QUEUED:
            return Text(f"job {run.job} has been in the queue for {clock(now_s - run.since_s)}")
        view = run.view(now_s)
        drawn = charts_of(run.statistics.curve, self._console, view)
        return render_panel(view, run.title, drawn, "" if run.status.has_ended else self._foot)

    def _print_line(self, is_last: bool = False) -> None:
        statuses = [run.status.status for run in self._runs]
        if len(self._runs) > 1:
            counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
            frames = sum(run.statistics.frames for run in self._runs)
            print_line(self._console, f"{counts}; {frames:,} frames")
        elif statuses[0] is not Status.QUEUED:
            self._lines.print(self._runs[0].view(time.monotonic()), is_last)

    def _table(self) -> RenderableType:
        rows, now_s = [], time.monotonic()
        for run in self._runs:
            state = str(run.status.status)
            if run.status.status is Status.QUEUED and run.status.detail:
                state += f" ({run.status.detail.partition(':')[0]})"
            elapsed = "" if run.status.has_ended else clock(now_s - run.since_s)
            rate = None if run.status.has_ended else run.window.view(now_s).now_per_s
            numbers = (f"{run.statistics.frames:,}", number(rate), number(run.statistics.mean_return))
            rows.append((run.name, run.job or "", state, elapsed, *numbers, sparkline(run.statistics.curve)))
        head = ("point", "job", "state", "for", "frames", "frames/s", "return", "")
        return table(rows, head, 3, box=None, header_style="dim")
