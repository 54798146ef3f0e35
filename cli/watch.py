"""Follows runs that are jobs: the queue, then the same live progress as of a run here, read from the run folders.

Ctrl-C asks once what is meant, where somebody can answer; without an answer, or a second time, it cancels the jobs, as
SIGTERM does at once.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.status import Status as Spinner
from rich.table import Table

from collectx.cli.run_status import RunStatus, query_slurm, status_of
from collectx.config import RunConfig
from collectx.errors import LauncherError
from collectx.launcher.slurm import commands
from collectx.launcher.slurm.worker_job import JobState
from collectx.run import display
from collectx.run.display import PLAIN_S, REFRESH_S, Progress, clock, number
from collectx.run.events import format_event
from collectx.run.folder import RunFolder
from collectx.run.result import Failure, Result, Status
from collectx.run.statistics import JsonLinesTail, MetricsTail
from collectx.run.view import Sampler

# How often SLURM is asked: soon at first, more rarely while a job waits or runs for long.
_MIN_QUERY_S = 1.0
_MAX_QUERY_S = 10.0
# A job that has ended may have left a result that this host does not see yet, and SLURM may not say yet how it ended.
_SETTLE_S = 5.0
# How long SLURM may take to end what is cancelled: its KillWait is 30 s.
_CANCEL_S = 90.0


@dataclass(frozen=True)
class Outcome:
    """How a followed run ended."""

    status: str
    folder: Path


@dataclass
class WatchedRun:
    """One run that is followed."""

    name: str
    files: RunFolder
    job: str
    statistics: MetricsTail
    events: JsonLinesTail
    shows_events: bool
    may_requeue: bool = False
    status: RunStatus = field(default_factory=lambda: RunStatus("queued"))
    since_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    result_ns: int | None = None  # when the result was written that SLURM was last asked about

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.statistics, self.since_s)


class Scheduler(Protocol):
    """Whoever knows the jobs of followed runs."""

    def ask(self, jobs: Iterable[str]) -> Mapping[str, JobState] | LauncherError: ...
    def cancel(self, jobs: Sequence[str]) -> None: ...


class Slurm:
    """Jobs of their own."""

    def ask(self, jobs: Iterable[str]) -> Mapping[str, JobState] | LauncherError:
        return query_slurm(jobs)

    def cancel(self, jobs: Sequence[str]) -> None:
        commands.cancel(jobs)


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


class Watcher:
    """Some runs, followed together.

    Attributes:
        is_detached: the user has left, and the jobs go on.
    """

    def __init__(self, runs: Sequence[tuple[str, RunFolder, RunConfig, str]], scheduler: Scheduler | None = None):
        """
        Args:
            runs: names, folders, configurations and jobs.
            scheduler: of the jobs; None: they are jobs of their own, which go on without this process.
        """
        self._scheduler = scheduler or Slurm()
        self._runs = [
            WatchedRun(
                name,
                files,
                job,
                MetricsTail(files.metrics, cfg.collector.total_frames),
                JsonLinesTail(files.events),
                shows_events=cfg.collector.on_worker_failure != "raise",  # with "raise" the error is shown at the end
                may_requeue=getattr(cfg.launcher, "requeue", False),
            )
            for name, files, cfg, job in runs
        ]
        self.is_detached = False
        self._cancelled_s: float | None = None
        self._has_prompted = scheduler is not None
        self._next_query_s = 0.0
        self._began_s = time.monotonic()
        self._outage_since_s: float | None = None

    def watch(self) -> list[Outcome]:
        """Blocks until all have ended, or the user leaves; shows them meanwhile, and at the end what went wrong. To be
        called within `terminable`."""
        while not self._is_over():
            try:
                self._watch()
            except Terminated:
                self._cancel()
            except KeyboardInterrupt:
                if self._cancelled_s is not None:
                    print(f"left; SLURM is still ending {self._names()}", file=sys.stderr)
                    break
                if self._ask_to_leave():
                    self.is_detached = True
                    break
        self._print_failures()
        return [Outcome(run.status.word if run.status.is_over else "interrupted", run.files.path) for run in self._runs]

    def _is_over(self) -> bool:
        return all(run.status.is_over for run in self._runs)

    def _watch(self) -> None:
        view = SingleView(self._runs[0]) if len(self._runs) == 1 else SweepView(self._runs)
        with view:
            while not self._is_over():
                self._update(view)
                if self._cancelled_s is not None and time.monotonic() > self._cancelled_s + _CANCEL_S:
                    raise KeyboardInterrupt
                time.sleep(REFRESH_S)

    def _update(self, view: SingleView | SweepView) -> None:
        for run in self._runs:
            run.statistics.update()
            self._show_events(run, view)
        now_s = time.monotonic()
        # The result of an earlier life of a job that waits again is no news.
        written = [
            (run, ns) for run in self._runs if not run.status.is_over and (ns := _result_time_ns(run)) != run.result_ns
        ]
        if now_s >= self._next_query_s or any(ns is not None for _, ns in written):
            for run, ns in written:
                run.result_ns = ns
            self._ask(view, now_s)
            waited_s = now_s - max(run.since_s for run in self._runs)
            is_ending = any(run.ended_s is not None and not run.status.is_over for run in self._runs)
            pause_s = _MIN_QUERY_S if is_ending else min(_MAX_QUERY_S, max(_MIN_QUERY_S, waited_s / 10))
            self._next_query_s = time.monotonic() + pause_s
        view.draw()

    def _show_events(self, run: WatchedRun, view: SingleView | SweepView) -> None:
        for event in run.events.read()[0]:
            text = format_event(event["event"], event) if run.shows_events else None
            if text is not None:
                view.say(text if len(self._runs) == 1 else f"{run.name}: {text}")

    def _ask(self, view: SingleView | SweepView, now_s: float) -> None:
        living = [run for run in self._runs if not run.status.is_over]
        states = self._scheduler.ask(run.job for run in living)
        self._show_outage(states, view, now_s)
        for run in living:
            new = status_of(run.files, run.job, states)
            if new.word == "unknown":
                continue
            if not new.is_over:
                run.ended_s = None
            elif not self._is_settled(run, new, states):
                run.ended_s = run.ended_s or now_s
                if _may_restart(run, new, states) or now_s < run.ended_s + _SETTLE_S:
                    continue
            if new != run.status:
                if new.word == "running" != run.status.word:
                    run.since_s = now_s
                run.status = new
                if not new.is_over or len(self._runs) > 1:
                    first = new.detail.partition("\n")[0]
                    view.draw()
                    view.say(f"{self._name(run)} is {new.word}{f' ({first})' if first else ''}")

    @staticmethod
    def _is_settled(run: WatchedRun, new: RunStatus, states: Mapping[str, JobState] | LauncherError) -> bool:
        """Whether nothing is to come that would say more about the end."""
        if run.files.read_result() is None or _may_restart(run, new, states):
            return False
        if new.word != "interrupted" or isinstance(states, LauncherError):
            return True
        return run.job not in states or states[run.job].is_over

    def _show_outage(
        self, states: Mapping[str, JobState] | LauncherError, view: SingleView | SweepView, now_s: float
    ) -> None:
        if not isinstance(states, LauncherError):
            self._outage_since_s = None
        elif self._outage_since_s is None:
            self._outage_since_s = now_s
            view.say(f"whether the jobs go on is not known for now: {states}")

    def _ask_to_leave(self) -> bool:
        """Asks what Ctrl-C means, the first time; cancels unless the answer is another. Whether the user leaves."""
        if sys.stdin.isatty() and not self._has_prompted:
            self._has_prompted = True
            try:
                question = f"cancel {self._names()}? y cancels, n leaves and lets go on, Enter follows on [y/n]: "
                answer = input(question).strip().lower()
            except (EOFError, KeyboardInterrupt):
                answer = "y"
            if not answer.startswith("y"):
                return answer.startswith("n")
        self._cancel()
        return False

    def _cancel(self) -> None:
        jobs = [run.job for run in self._runs if not run.status.is_over]
        if self._cancelled_s is None:
            self._cancelled_s = time.monotonic()
        print(f"cancelling {self._names()}; this may take SLURM half a minute", file=sys.stderr, flush=True)
        try:
            self._scheduler.cancel(jobs)
        except LauncherError as error:
            print(f"collectx: the jobs go on: {error}", file=sys.stderr)
        self._next_query_s = 0.0

    def _names(self) -> str:
        living = [run.job for run in self._runs if not run.status.is_over]
        return f"job {living[0]}" if len(living) == 1 else f"{len(living)} jobs"

    def _name(self, run: WatchedRun) -> str:
        return f"job {run.job}" if len(self._runs) == 1 else f"{run.name} (job {run.job})"

    def _print_failures(self) -> None:
        """What went wrong; of a single run its table as well."""
        told = set()
        for run in self._runs:
            result = run.files.read_result() or {}
            text = run.status.detail if run.status.word == "failed" else ""
            for failure in result.get("failures", ())[:1] if run.status.word == "failed" else ():
                text = f"{failure['type']}: {failure['message']}\n{_traceback(run.files)}".rstrip()
            if text and text not in told:
                told.add(text)
                display.print_message(text if len(self._runs) == 1 else f"{run.name}: {text}")
            elif run.status.word == "interrupted":
                display.print_message(f"{self._name(run)}: {run.status.detail or 'interrupted'}")
        if len(self._runs) == 1 and not self.is_detached:
            _show_result(self._runs[0])


class SingleView:
    """One run: what it waits for while it is in the queue, then the display of a run here."""

    def __init__(self, run: WatchedRun):
        self._run = run
        self._console = Console()
        self._waiting: Spinner | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> SingleView:
        self.draw()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._waiting is not None:
            self._waiting.stop()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.say(text)
        else:
            self._console.print(f"collectx: {text}", soft_wrap=True, markup=False, highlight=False)

    def draw(self) -> None:
        """The progress has a thread of its own; a run in the queue is reported by `say` where there is no terminal."""
        if self._progress is not None:
            return
        if self._run.status.word == "running":
            if self._waiting is not None:
                self._waiting.stop()
            self._progress = Progress(self._run.statistics, start_s=self._run.since_s)
            self._progress.__enter__()
        elif self._console.is_terminal:
            text = f"job {self._run.job} is in the queue for {clock(time.monotonic() - self._run.since_s)}"
            if self._waiting is None:
                self._waiting = self._console.status(text, refresh_per_second=4)
                self._waiting.start()
            self._waiting.update(text)


class SweepView:
    """Several runs: a line for each on a terminal, elsewhere a sum every few seconds."""

    def __init__(self, runs: Sequence[WatchedRun]):
        self._runs = runs
        self._console = Console()
        self._live: Live | None = None
        self._last_s = time.monotonic()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> SweepView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(f"collectx: {text}", soft_wrap=True, markup=False, highlight=False)

    def draw(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif time.monotonic() > self._last_s + PLAIN_S:
            self._last_s = time.monotonic()
            words = [run.status.word for run in self._runs]
            frames = sum(run.statistics.frames for run in self._runs)
            counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
            self._console.print(f"{counts}; {frames:,} frames", soft_wrap=True, markup=False, highlight=False)

    def _table(self) -> Table:
        table = Table(box=None, header_style="dim")
        for name in ("point", "job", "state"):
            table.add_column(name)
        for name in ("for", "frames", "frames/s", "return"):
            table.add_column(name, justify="right")
        for run in self._runs:
            statistics, state = run.statistics, run.status.word
            if run.status.word == "queued" and run.status.detail:
                state += f" ({run.status.detail.partition(':')[0]})"
            passed = "" if run.status.is_over else clock(time.monotonic() - run.since_s)
            rate = None if run.status.is_over else run.sampler.view(time.monotonic()).now_per_s
            numbers = (f"{statistics.frames:,}", number(rate), number(statistics.mean_return))
            table.add_row(run.name, run.job, state, passed, *numbers)
        return table


def _result_time_ns(run: WatchedRun) -> int | None:
    """When the result of a run was written; None where it has none."""
    try:
        return run.files.result.stat().st_mtime_ns
    except OSError:
        return None


def _may_restart(run: WatchedRun, new: RunStatus, states: Mapping[str, JobState] | LauncherError) -> bool:
    """Whether SLURM may start a run again that has left a result: its job, which may be requeued, has not ended."""
    if not run.may_requeue or new.word == "completed" or isinstance(states, LauncherError):
        return False
    return run.job in states and not states[run.job].is_over


def _show_result(run: WatchedRun) -> None:
    """The table of a run here, and its folder."""
    content = run.files.read_result()
    console = Console(highlight=False)
    if content is not None:
        fields = content | {
            "status": Status(content["status"]),
            "failures": tuple(Failure(**failure) for failure in content["failures"]),
        }
        console.print()
        console.print(display.result_table(Result(**fields, folder=run.files.path)))
    console.print(str(run.files.path), soft_wrap=True, markup=False)


def _traceback(files: RunFolder) -> str:
    """The end of the trainer's log from its last traceback on."""
    try:
        text = files.log("trainer").read_text(errors="replace").rstrip()
    except OSError:
        return ""
    _, found, rest = text.rpartition("Traceback (most recent call last)")
    return "\n".join(f"  {line}" for line in (found + rest).splitlines()[-60:])


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread."""

    def raise_it(signum: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
