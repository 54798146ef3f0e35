"""Watches runs: their state in the queue, then their live progress, read from the run folders.

How a command that started jobs ends them:

    first Ctrl-C in a terminal            the user is asked whether to end the jobs
    first Ctrl-C elsewhere, or SIGTERM    the jobs write a checkpoint and end
    second Ctrl-C or SIGTERM              the jobs are cancelled
    jobs that take too long to end        are cancelled
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from collectx.config.derived import expected_frames
from collectx.errors import TRACEBACK, DamagedFileError, LauncherError
from collectx.jobs.cancel import end_jobs
from collectx.jobs.status import JobStates, NamedRun, Outcome, RunStatus, numbers_of, query_slurm, status_of
from collectx.place.slurm import commands
from collectx.process import handling
from collectx.run.folder.events import Notices, format_event
from collectx.run.folder.files import JsonLinesTail
from collectx.run.folder.result import Status
from collectx.run.statistics import MetricsTail, RateWindow, View
from collectx.run.terminal import printing
from collectx.run.terminal.charts import sparkline
from collectx.run.terminal.display import (
    PLAIN_S,
    REFRESH_S,
    WAITING,
    Lines,
    charts_of,
    render_panel,
    title_of,
    to_continue,
    without_our_frames,
)
from collectx.run.terminal.printing import clock, number, print_line, table

# The interval between two queries: short at first, and growing while a job waits or runs.
_MIN_QUERY_S = 1.0
_MAX_QUERY_S = 10.0
# How long after a job's end its result may take to appear on this host, and SLURM to report its state.
_SETTLE_S = 5.0
# The columns of a run's curve in a table.
_MIN_CURVE, _MAX_CURVE = 6, 16
# How long SLURM may take to end cancelled jobs, or interrupted ones after their grace time: its KillWait is 30 s.
_CANCEL_S = 90.0


class Terminated(KeyboardInterrupt):
    """Raised in the main thread by SIGTERM."""


def sigterm_raises() -> AbstractContextManager[None]:
    """Makes SIGTERM raise `Terminated` in the main thread within the block."""

    def raise_terminated(signum: int, frame: object) -> None:
        raise Terminated

    return handling({signal.SIGTERM: raise_terminated})


class Watcher:
    """Watches some runs until all have ended. `is_detached` says whether the user left while jobs were running.

    Args:
        runs: each run with the id of its job; None for a run that is a process.
        interrupt: ends jobs, which write a checkpoint first.
        cancel: ends jobs without a checkpoint.
        may_leave: whether the jobs may outlive this process.
        is_owner: whether this command started the jobs, so Ctrl-C may end them.
        begun: returns the runs that have begun since the last call.
        awaits: returns the names of the runs that have not begun. Five seconds after the others have ended, the watcher
            stops waiting for them.
    """

    def __init__(
        self,
        runs: Sequence[tuple[NamedRun, str | None]],
        states: Callable[[Iterable[str]], JobStates] = query_slurm,
        interrupt: Callable[[Sequence[str]], None] = commands.interrupt,
        cancel: Callable[[Sequence[str]], None] = commands.cancel,
        may_leave: bool = True,
        is_owner: bool = True,
        begun: Callable[[], Sequence[tuple[NamedRun, str | None]]] = tuple,
        awaits: Callable[[], Sequence[str]] = tuple,
    ):
        self.is_detached = False
        self._runs = [WatchedRun(run, job) for run, job in runs]
        self._states = states
        self._interrupt_jobs = interrupt
        self._cancel_jobs = cancel
        self._grace_s = max(run.grace_s for run, _ in runs)
        self._may_leave = may_leave
        self._is_owner = is_owner
        self._begun, self._awaits = begun, awaits
        self._awaited = list(awaits())
        self._idle_s: float | None = None
        self._interrupted_s: float | None = None
        self._is_cancelled = False
        self._next_query_s = 0.0
        self._has_outage = False
        self._has_asked = False
        self._damaged: list[WatchedRun] = []

    def watch(self) -> list[Outcome]:
        """Blocks until all runs have ended and no other begins, or the user leaves. Shows the runs meanwhile, and their
        failures at the end. Call it within `sigterm_raises` if the runs are to end with this process."""
        while self._goes_on():
            try:
                self._watch()
            except KeyboardInterrupt as error:
                if not self._is_owner:
                    self.is_detached = True
                    verb = "continues" if len(self._unfinished()) == 1 else "continue"
                    printing.message(f"stopped watching; {self._describe_jobs()} {verb}")
                    break
                if isinstance(error, Terminated):
                    self._interrupt_or_cancel()
                    continue
                if self._is_cancelled:
                    printing.message(f"stopped watching; SLURM is still ending {self._describe_jobs()}")
                    break
                if self._interrupted_s is not None:
                    self._cancel()
                elif self._ask_to_leave():
                    self.is_detached = True
                    break
        self._print_failures()
        if len(self._runs) == 1 and not self.is_detached:
            (run,) = self._runs
            if run.status.status in (Status.INTERRUPTED, Status.FAILED) and (text := to_continue(run.run_folder)):
                printing.message(text)
            numbers = None
            with suppress(DamagedFileError):
                numbers = numbers_of(run.run_folder)
            printing.print_run(run.name, run.status.status, numbers, run.run_folder.path)
        statuses = [run.status.status if run.status.has_ended else Status.INTERRUPTED for run in self._runs]
        return [Outcome(status, run.run_folder.path) for status, run in zip(statuses, self._runs, strict=True)]

    def _unfinished(self) -> list[WatchedRun]:
        return [run for run in self._runs if not run.status.has_ended]

    def _goes_on(self) -> bool:
        """Whether a run has not ended, or one may begin: between two points of a sweep, none runs."""
        if self._unfinished():
            self._idle_s = None
            return True
        if self._idle_s is None and self._awaits():
            self._idle_s = time.monotonic()
        if self._idle_s is None:
            return self._add_begun()  # the last one may have begun since the last query
        return time.monotonic() < self._idle_s + _SETTLE_S

    def _add_begun(self) -> bool:
        """Adds the runs that have begun since the last call; returns whether there are any."""
        begun = [WatchedRun(run, job) for run, job in self._begun()]
        if begun:
            self._runs += begun
            self._awaited[:] = self._awaits()
        return bool(begun)

    def _watch(self) -> None:
        with RunsDisplay(self._runs, self._foot(), self._awaited) as display:
            while self._goes_on():
                self._update(display)
                self._limit_end()
                time.sleep(REFRESH_S)

    def _foot(self) -> str:
        if not self._is_owner:
            return f"Ctrl-C stops watching; the run{'s continue' if len(self._runs) > 1 else ' continues'}"
        return "Ctrl-C asks whether to cancel" if sys.stdin.isatty() and self._may_leave else "Ctrl-C saves and cancels"

    def _limit_end(self) -> None:
        """Cancels jobs that take too long to end; raises KeyboardInterrupt if SLURM takes too long too."""
        if self._interrupted_s is None:
            return
        waited_s = time.monotonic() - self._interrupted_s
        if waited_s > self._grace_s and not self._is_cancelled:
            self._cancel()
        if waited_s > self._grace_s + _CANCEL_S:
            raise KeyboardInterrupt

    def _update(self, display: RunsDisplay) -> None:
        for run in self._runs:
            run.update()
            self._show_events(run, display)
            if run.damage and run not in self._damaged:
                self._damaged.append(run)
                display.say(f"{run.damage}; collectx keeps following the run, and shows what it can still read")
        now_s = time.monotonic()
        # An unchanged result, as of a requeued job's earlier attempt, is no reason for a query.
        changed = [(run, time_ns) for run in self._unfinished() if (time_ns := run.result_time_ns()) != run.result_ns]
        if now_s >= self._next_query_s or any(time_ns is not None for _, time_ns in changed):
            for run, time_ns in changed:
                run.result_ns = time_ns
            self._query(display, now_s)
            waited_s = now_s - max(run.since_s for run in self._runs)
            is_ending = self._idle_s is not None or any(run.ended_s is not None for run in self._unfinished())
            pause_s = _MIN_QUERY_S if is_ending else min(_MAX_QUERY_S, max(_MIN_QUERY_S, waited_s / 10))
            self._next_query_s = time.monotonic() + pause_s
        display.draw()

    def _show_events(self, run: WatchedRun, display: RunsDisplay) -> None:
        with Notices(lambda text: display.say(text if len(self._runs) == 1 else f"{run.name}: {text}")) as show:
            for event in run.read_events():
                text = format_event(event.get("event", ""), event) if run.shows_events else None
                if text is not None:
                    show(text, event.get("worker"))

    def _query(self, display: RunsDisplay, now_s: float) -> None:
        self._add_begun()
        runs = self._unfinished()
        states = self._states([run.job for run in runs if run.job is not None])
        if isinstance(states, LauncherError) and not self._has_outage:
            display.say(f"SLURM does not say at the moment whether the jobs are still running ({states})")
        self._has_outage = isinstance(states, LauncherError)
        for run in runs:
            status = status_of(run.run_folder, run.job, states)
            if status.status is Status.UNKNOWN or self._may_change(run, status, states, now_s) or status == run.status:
                continue
            if status.status is not run.status.status and not status.has_ended:
                # A run that was running before the first query began earlier.
                run.begin(now_s if self._has_asked else now_s - run.age_s(), is_restart=self._has_asked)
            run.status = status
            if not status.has_ended or len(self._runs) > 1:
                reason = status.detail.partition("\n")[0]
                said = f"{self._describe(run)} is {status.status}"
                if status.has_ended:
                    reason = reason.removeprefix(f"job {run.job} ended as ")
                    reason = ": ".join(filter(None, (run.job and f"job {run.job}", reason)))
                    said = f"{run.name} {status.status}"
                display.say(f"{said} ({reason})" if reason else said)
        self._has_asked = True

    @staticmethod
    def _may_change(run: WatchedRun, status: RunStatus, states: JobStates, now_s: float) -> bool:
        """Whether `status` says that the run has ended, but SLURM may restart it or report a better reason."""
        if not status.has_ended:
            run.ended_s = None
            return False
        state = None if isinstance(states, LauncherError) or run.job is None else states.get(run.job)
        job_lives = state is not None and not state.is_over
        may_restart = run.may_requeue and status.status is not Status.COMPLETED and job_lives
        has_result = status.status is Status.DAMAGED or run.run_folder.read_result() is not None
        is_final = has_result and not (job_lives and status.status is Status.INTERRUPTED)
        if is_final and not may_restart:
            return False
        run.ended_s = run.ended_s or now_s
        return may_restart or now_s < run.ended_s + _SETTLE_S

    def _ask_to_leave(self) -> bool:
        """Asks the user once whether to end the jobs, and ends them without an answer. Returns whether the user
        leaves."""
        if sys.stdin.isatty() and self._may_leave:
            self._may_leave = False
            jobs = self._describe_jobs()
            try:
                answer = input(f"cancel {jobs}? y: cancel, n: leave running, Enter: keep watching [y/n]: ")
            except (EOFError, KeyboardInterrupt):
                answer = "y"
            if not answer.strip().lower().startswith("y"):
                return answer.strip().lower().startswith("n")
        self._interrupt_or_cancel()
        return False

    def _interrupt_or_cancel(self) -> None:
        """Ends the jobs: the first time with a checkpoint, the second time without."""
        if self._interrupted_s is not None:
            self._cancel()
            return
        self._interrupted_s = time.monotonic()
        limit = f"within {self._grace_s:g} s (checkpoint.grace_s + collector.close_timeout_s)"
        text = (
            f"saving a checkpoint and ending {self._describe_jobs()}, {limit}. To cancel at once, press Ctrl-C again."
        )
        self._end(self._interrupt_jobs, text)

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._end(self._cancel_jobs, f"cancelling {self._describe_jobs()}; this may take SLURM half a minute")

    def _end(self, end: Callable[[Sequence[str]], None], text: str) -> None:
        printing.message(text)
        end_jobs(end, [run.job for run in self._unfinished() if run.job is not None])
        self._next_query_s = 0.0

    def _describe_jobs(self) -> str:
        runs = self._unfinished()
        if len(runs) == 1:
            return f"job {runs[0].job}" if runs[0].job else str(runs[0].run_folder.path)
        return f"{len(runs)} {'jobs' if all(run.job for run in runs) else 'runs'}"

    def _describe(self, run: WatchedRun) -> str:
        if run.job is None:
            return run.name
        return f"job {run.job}" if len(self._runs) == 1 else f"{run.name} (job {run.job})"

    def _print_failures(self) -> None:
        printed = set()
        for run in self._runs:
            if run.status.status is Status.INTERRUPTED:
                detail = run.status.detail or "interrupted"
                printing.message(f"{run.name if f'job {run.job}' in detail else self._describe(run)}: {detail}")
            elif run.status.status is Status.FAILED:
                text, where = _failure_text(run)
                if text and text not in printed:
                    printed.add(text)
                    printing.error(f"{text}{where}" if len(self._runs) == 1 else f"{run.name}: {text}{where}")


def _failure_text(run: WatchedRun) -> tuple[str, str]:
    """Returns why a run failed; if there is a result, with the frames of user code in the last traceback of the
    trainer's log, or else the log's last lines. The second text says where the rest is."""
    path, log = run.run_folder.log("trainer"), ""
    if run.run_folder.result.exists():
        with suppress(OSError):
            log = path.read_text(errors="replace").rstrip()
    _, head, rest = f"\n{log}".rpartition(TRACEBACK)
    shown = without_our_frames(head + rest) if head else log.splitlines()[-10:]
    where = f"\n  full {'traceback' if head else 'log'}: {path}" if log else ""
    return "\n".join([run.status.detail, *(f"  {line}" for line in shown)]), where


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
        # The frames at which the run began to wait for evaluations.
        self._awaiting = -1
        self.begin(time.monotonic() - (self.age_s() if job is None else 0.0))

    def begin(self, began_s: float, is_restart: bool = False) -> None:
        """Lets the time begin at `began_s`. Batches before a restart do not count in the rate."""
        self.update()
        if is_restart:
            self.statistics.forget_rate()
        self.since_s = began_s
        self.window = RateWindow(self.statistics, began_s)

    def view(self, now_s: float) -> View:
        """Returns the view at `now_s`; the summary of a run that has ended."""
        if not self.status.has_ended:
            return self.window.view(now_s)
        elapsed_s = None
        with suppress(DamagedFileError, KeyError, TypeError):
            elapsed_s = float((self.run_folder.read_result() or {})["wall_s"])
        return self.window.summary(now_s, elapsed_s)

    def update(self) -> None:
        """Reads the lines of batches that the run has added; skips those that are read with a damaged one."""
        try:
            self.statistics.update()
        except DamagedFileError as error:
            self.damage = self.damage or str(error)

    def read_events(self) -> list[dict[str, Any]]:
        """Returns the events that the run has added; none if one of them is damaged. The elapsed time is that of the
        newest resume."""
        try:
            events = self.events.read()[0]
        except DamagedFileError as error:
            self.damage = self.damage or str(error)
            return []
        for event in events:
            if event.get("event") == "evaluation_awaited":
                self._awaiting = self.statistics.frames
            if event.get("event") == "resumed":
                self.window.start_s = time.monotonic() - self.age_s()
        return events

    def age_s(self) -> float:
        """Seconds since the run began, without pauses before a resume; 0 if its folder does not tell."""
        with suppress(KeyError, TypeError, ValueError):
            meta = self.run_folder.read_meta()
            began = datetime.strptime(meta["time"], "%Y-%m-%dT%H:%M:%S%z")
            return max(0.0, (datetime.now(began.tzinfo) - began).total_seconds() + meta.get("elapsed_s", 0.0))
        return 0.0

    def stage(self) -> str:
        """Returns what the run does while it is not collecting, or how it has ended; otherwise ""."""
        if self.status.has_ended:
            return str(self.status.status)
        if self.statistics.age_s(0.0) > time.monotonic() - self.since_s:
            return WAITING
        return "waiting for evaluations" if self._awaiting == self.statistics.frames else ""

    def result_time_ns(self) -> int | None:
        """Returns when the result was written; None without one."""
        try:
            return self.run_folder.result.stat().st_mtime_ns
        except OSError:
            return None


class RunsDisplay:
    """Shows runs within a `with` block. One run: its progress, whose last state remains. Several runs: a table on a
    terminal, elsewhere a line of totals every few seconds."""

    def __init__(self, runs: Sequence[WatchedRun], foot: str = "", awaited: Sequence[str] = ()):
        """`foot` says what Ctrl-C does, `awaited` are the names of the runs that have not begun. Both sequences may
        change."""
        self._runs, self._awaited = runs, awaited
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
        has_progress = self._num_runs == 1 and self._runs[0].statistics.batches > 0
        if self._live is not None:
            self._live.transient = not has_progress
            self._live.stop()
        elif has_progress:
            self._print_line(is_last=True)

    @property
    def _num_runs(self) -> int:
        return len(self._runs) + len(self._awaited)

    def draw(self) -> None:
        if self._live is not None:
            panel = self._panel(self._runs[0]) if self._num_runs == 1 else Group(Text(self._sum()), self._table())
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
        drawn = charts_of(view.numbers.curve, self._console, view)
        return render_panel(view, run.title, drawn, "" if run.status.has_ended else self._foot, run.stage())

    def _print_line(self, is_last: bool = False) -> None:
        run = self._runs[0]
        if self._num_runs > 1:
            print_line(self._console, f"{self._sum()}; {sum(run.statistics.frames for run in self._runs):,} frames")
        elif run.status.status is not Status.QUEUED:
            self._lines.print(run.view(time.monotonic()), is_last, run.stage())

    def _sum(self) -> str:
        """Returns how many of several runs are in which state and, if they run one after another, the remaining time,
        as if all took equally long after their first batch."""
        statuses = [*(str(run.status.status) for run in self._runs), *["not started"] * len(self._awaited)]
        text = ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(statuses))
        if any(run.job for run in self._runs) or statuses.count(Status.RUNNING) != 1:
            return text
        views = [run.view(time.monotonic()) for run in self._runs]
        (share,) = (view.share for run, view in zip(self._runs, views, strict=True) if not run.status.has_ended)
        done = len(self._runs) - 1 + share
        left_s = sum(view.elapsed_s - view.begin_s for view in views) * (self._num_runs - done) / (done or 1)
        return f"{text}, ETA {clock(left_s)}" if done else text

    def _table(self) -> RenderableType:
        rows, now_s = [], time.monotonic()
        jobs = ["job"] * any(run.job for run in self._runs)
        for run in self._runs:
            status = str(run.status.status)
            if run.status.status is Status.QUEUED and run.status.detail:
                status += f" ({run.status.detail.partition(':')[0]})"
            elapsed = "" if run.status.has_ended else clock(now_s - run.since_s)
            rate = run.statistics.frames_per_s if run.status.has_ended else run.window.view(now_s).now_per_s
            numbers = (f"{run.statistics.frames:,}", number(rate), number(run.statistics.mean_return))
            rows.append((run.name, *[run.job or ""] * len(jobs), status, elapsed, *numbers))
        rows += [(name, *[""] * len(jobs), "not started", *[""] * 4) for name in self._awaited]
        head = ["point", *jobs, "status", "for", "frames", "frames/s", "return"]
        # A curve takes no room from the names.
        width = self._console.width - sum(max(map(len, column)) + 2 for column in zip(head, *rows, strict=True)) - 2
        if width >= _MIN_CURVE:
            curves = [sparkline(run.statistics.curve, min(width, _MAX_CURVE)) for run in self._runs]
            curves += [""] * len(self._awaited)
            rows, head = [(*row, curve) for row, curve in zip(rows, curves, strict=True)], [*head, ""]
        return table(rows, head, 2 + len(jobs), box=None, header_style="dim")
