"""The output of a run: live progress, as a rich display on a terminal and a plain line every few seconds elsewhere; at
the end the errors, a short table and the path of the run folder.

A thread of the trainer's process reads `Statistics` and draws the progress; deliveries never wait for it. The thread
shares the interpreter with the trainer, so it draws at most 4 times a second and spends at most 1% of its time
drawing.
"""

from __future__ import annotations

import io
import math
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from collectx.config.derived import env_option
from collectx.config.schema.run import RunConfig
from collectx.errors import TRACEBACK, CollectxError, frames_of_user, printable, summary_of, text_of, traceback_of
from collectx.imports import is_installed
from collectx.process import is_debugging
from collectx.progress import erase, tell_briefly
from collectx.run.folder.batch_line import TIMES
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import ALL_DELIVERED, Result, Status, limit_of, type_name
from collectx.run.statistics import Curve, RateWindow, Statistics, View
from collectx.run.terminal import printing
from collectx.run.terminal.printing import clock, number, print_line, scalar

NUM_WORKERS_SHOWN = 8
REFRESH_S = 0.25
PLAIN_S = 5.0
# A point of a sweep prints one line at its end, and others only if it takes long.
POINT_S = 60.0
# When the first plain line appears, if no batch was delivered before.
FIRST_S = 1.0
DRAWING_SHARE = 0.01
# Every so many plain lines, details follow.
DETAILS_EVERY = 10
# Maximum width and height of both charts together, their minimum height, and the number of other lines of a panel, of
# which there are more in less than 80 columns.
_CHART = 120, 9
_LEAST_HEIGHT = 5
# A bar that would be shorter is above its texts instead of beside them.
_LEAST_BAR = 10
# The width in which the panel has its full shape, and one in which every table fits.
_WIDTH, _WIDEST = 80, 200
_MOST_LINES, _MOST_NARROW_LINES = 12, 20
WAITING = "waiting for the first batch"
# The columns of the shares of `TIMES`, and those that a narrow terminal leaves out, in this order.
_SHARES = tuple(name.removesuffix("_s") for name in TIMES)
_LEFT_OUT = ("send", "policy", "lag", "env")
# If one side waits for this share of the time, the other is the bottleneck.
_DOMINATES = 0.6
# The first line of a frame in a traceback, and the folder of collectx's frames.
_FRAME = re.compile(r'  File "(?P<file>.+?)", line \d+')
_PACKAGE = f"{Path(__file__).parents[2]}/"


@dataclass(frozen=True)
class Point:
    """A run as a point of a sweep.

    Attributes:
        name: the overrides in which the point differs from the others.
        number, count: the point's number, from 1, and how many points there are; None if the sweeper chooses them as it
            goes.
        width: the length of the longest name, to which lines are padded.
        is_alone: whether no other point prints at the same time.
        num_run, num_left: how many points this command has run, and how many it has to run, with this one; no bar shows
            them if `num_left` is 0.
        begin_s: when the first of them started, by `time.monotonic`.
        start_s: how long that one took to its first batch: it imported packages for all.
    """

    name: str
    number: int
    count: int | None = None
    width: int = 0
    is_alone: bool = True
    num_run: int = 0
    num_left: int = 0
    begin_s: float = 0.0
    start_s: float = 0.0

    @property
    def label(self) -> str:
        """The begin of each of the point's lines: `[ 3/12] seed=2`."""
        of = "" if self.count is None else f"/{self.count}"
        return f"[{self.number:>{max(0, len(of) - 1)}}{of}] {self.name:<{self.width}}"

    def line(self, result: Result, status: str) -> str:
        """Returns the line that tells how the point has ended."""
        _, _, frames, speed, mean_return, wall_s = printing.cells("", "", result.as_json())
        return f"{self.label}  {status:<9}  {frames} frames  {speed:>6}/s  return {mean_return:>5}  {wall_s} s"

    def bar(self, view: View) -> tuple[ProgressBar, tuple[str, ...]]:
        """Returns the bar of the sweep, and the number of the point, the elapsed and the remaining time. That is known
        when part of a point has run, as if all points took equally long, without the start of the first one."""
        share, left_s, num_known = view.share, 0.0, self.num_run
        elapsed_s = time.monotonic() - self.begin_s
        work_s = elapsed_s - self.start_s if self.num_run else view.elapsed_s - view.begin_s
        if share and view.left_s is not None:
            left_s, num_known = view.left_s, num_known + 1
        others_s = (self.num_run + self.num_left - num_known) * (work_s + left_s) / (num_known or 1)
        left = f"ETA {clock(left_s + others_s)}" if num_known else ""
        bar = ProgressBar(total=self.count, completed=self.number - 1 + share, complete_style="cyan")
        return bar, (f"sweep: point {self.number} of {self.count}", f"elapsed {clock(elapsed_s)}", left)


class Progress:
    """Shows a run during the `with` block. The end of the block waits up to 2 s for the thread, which may hang on a
    pipe that no process reads, and then ends with the process. `count_stepping` returns how many workers have stepped
    their envs, and how many were started; None while unknown. `stage` returns what the run does before, and whenever it
    is not collecting; otherwise ""."""

    def __init__(
        self,
        statistics: Statistics,
        title: str = "",
        console: Console | None = None,
        start_s: float | None = None,
        point: Point | None = None,
    ):
        """
        Args:
            title: see `title_of`.
            console: by default, standard output.
            start_s: the zero of the elapsed time, by `time.monotonic`; by default, now.
            point: the point of a sweep that the run is. Its display does not stay on the screen, which those of all
                points would fill, and its plain lines are `POINT_S` apart.
        """
        self._point = point
        self._console = console or Console()
        self._plain_s = PLAIN_S if point is None else POINT_S
        self._rates = RateWindow(statistics, time.monotonic() if start_s is None else start_s)
        self._statistics = statistics
        self._title = title
        self._lines = Lines(self._console, "" if point is None else f"{point.label}  ")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collectx-progress", daemon=True)
        self.count_stepping: Callable[[], tuple[int, int] | None] = lambda: None
        self.stage: Callable[[], str] = lambda: ""
        self._foot = ""
        self._breakpointhook = sys.breakpointhook
        self._live: Live | None = None
        self._cell: Any = None
        if self._console.is_jupyter:
            # rich's own display in notebooks needs ipywidgets.
            from IPython.display import display

            self._cell = display(_html(Text("")), display_id=True)
            self._foot = "Interrupt the kernel to save and stop"
        elif self._console.is_terminal and not self._console.is_dumb_terminal and (point is None or point.is_alone):
            self._live = Live(console=self._console, auto_refresh=False)
            self._foot = "Ctrl-C saves and stops"
        self._printed_s = self._rates.start_s if point is not None and self._live is None else -math.inf

    def __enter__(self) -> Self:
        if self._live is not None:
            erase(self._console.file)
            self._live.start()
            sys.breakpointhook = self._debug
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        sys.breakpointhook = self._breakpointhook
        self._stop.set()
        self._thread.join(timeout=2.0)
        if self._live is not None:
            # Removes the display of a run without a batch, too.
            self._live.transient = self._point is not None or self._statistics.started is None
            self._live.stop()

    def resume(self, start_s: float, curve: Curve) -> None:
        """Moves the zero of the elapsed time, and begins with the curve of the earlier batches."""
        self._rates.start_s, self._statistics.curve = start_s, curve

    def imports(self, what: str) -> None:
        """Prints what the run is importing, as often as other plain lines, on a terminal every second. For the imports
        before the `with` block, as the fork server cannot be forked from a process with a second thread."""
        now_s = time.monotonic()
        if now_s - self._printed_s >= (self._plain_s if self._live is None else 1.0):
            self._printed_s = now_s
            tell_briefly(f"[{clock(now_s - self._rates.start_s)}] importing {what}", self._console.file)

    def _debug(self, *args: Any, **kwargs: Any) -> Any:
        """Handles `breakpoint()`: plain lines replace the live display, which would draw over the prompt."""
        live, self._live = self._live, None
        if live is not None:
            live.transient = True
            live.stop()
        if self._breakpointhook is not sys.__breakpointhook__ or args or kwargs or "PYTHONBREAKPOINT" in os.environ:
            return self._breakpointhook(*args, **kwargs)
        import pdb

        # The default hook would stop in this frame.
        return pdb.Pdb().set_trace(sys._getframe(1))

    def say(self, text: str) -> None:
        """Prints a line above the display, with the name of the point. Any thread may call it."""
        print_line(self._console, f"collectx: {_named(self._point, text)}")

    def explain(self, text: str) -> None:
        """Prints what the configuration explains; in a sweep, once, as it is true of other points too."""
        if printing.is_new(text):
            print_line(self._console, f"collectx: {text}")

    def say_below(self, text: str) -> None:
        """Shows a text below the display, in place of how to stop. Without a display, prints it. Any thread may call
        it."""
        self._foot = text
        if self._live is None and self._cell is None:
            self.say(text)

    def _run(self) -> None:
        try:
            is_live = self._live is not None or self._cell is not None
            min_s = interval_s = REFRESH_S if is_live else self._plain_s
            is_run = self._point is None
            if is_live or (
                is_run and not self._stop.wait(FIRST_S) and self._statistics.started is None and not is_debugging()
            ):
                self._draw()
            while not self._stop.wait(interval_s):
                if is_debugging():
                    continue
                started_s = time.thread_time()
                self._draw()
                interval_s = max(min_s, (time.thread_time() - started_s) / DRAWING_SHARE)
            if self._statistics.started is not None and (is_live or is_run):
                self._draw(is_last=True)
        except Exception as error:  # a display that cannot be drawn (a closed pipe) must not end the run
            text = f"the progress display stopped, but the run continues: {summary_of(error)}"
            print(f"collectx: {text}", file=sys.stderr)

    def _draw(self, is_last: bool = False) -> None:
        view = (self._rates.summary if is_last else self._rates.view)(time.monotonic())
        stage = stage_of(self.count_stepping() if view.numbers.started is None else None, self.stage())
        point, foot = self._point, self._foot
        if is_last:
            stage, point, foot = "", None, ""
        if (live := self._live) is not None:
            charts = charts_of(view.numbers.curve, self._console, view)
            live.update(render_panel(view, self._title, charts, foot, stage, point), refresh=True)
        elif self._cell is not None:
            charts = charts_of(view.numbers.curve, _notebook(), view)
            self._cell.update(_html(render_panel(view, self._title, charts, foot, stage, point)))
        else:
            self._lines.print(view, is_last, stage)


class Lines:
    """Prints the progress as plain lines, each after `head`."""

    def __init__(self, console: Console, head: str = ""):
        self._console, self._head = console, head
        self._num_printed = 0
        self._last_frames = -1

    def print(self, view: View, is_last: bool = False, stage: str = "") -> None:
        """Prints a line, the last one only if it has more frames than the line before; after it, and every
        `DETAILS_EVERY`, the details too."""
        self._num_printed += 1
        has_details = is_last or self._num_printed % DETAILS_EVERY == 0
        if not is_last or view.numbers.frames != self._last_frames:
            print_line(self._console, f"{self._head}{format_line(view, stage)}")
        self._last_frames = view.numbers.frames
        for detail in format_details(view) if has_details else ():
            print_line(self._console, detail)


def title_of(cfg: RunConfig, folder: Path, argv: Sequence[str]) -> str:
    """Returns the head of the display: the experiment, if the command line `argv` names one, env, trainer, seed and
    folder."""
    experiments = [word.partition("=")[2] for word in argv if word.lstrip("+").startswith("experiment=")]
    env = env_option(cfg.env).partition("=")[2]
    parts = [*experiments[-1:], f"{env}, {cfg.trainer.kind}", f"seed {cfg.seed}", printing.typed(folder)]
    return printable("  ".join(parts))


def charts_of(curve: Sequence[tuple[float, int, float]], console: Console, view: View) -> RenderableType | None:
    """Returns the curves of return and throughput, where the console has room below the rest of the panel."""
    from collectx.run.terminal.charts import charts

    width, height = console.size
    others = (_MOST_LINES if width >= _WIDTH else _MOST_NARROW_LINES) + min(len(view.workers), NUM_WORKERS_SHOWN)
    height = min(_CHART[1], height - others)
    if height < _LEAST_HEIGHT or not console.encoding.startswith("utf"):
        return None
    return charts(curve, min(width, _CHART[0]), height, view.begin_s)


def _notebook() -> Console:
    return Console(file=io.StringIO(), record=True, force_jupyter=False, width=100, height=40)


def _html(panel: RenderableType) -> Any:
    from IPython.display import HTML

    console = _notebook()
    console.print(panel)
    return HTML(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))


def stage_of(stepping: tuple[int, int] | None, stage: str = WAITING) -> str:
    """Returns what a run does before its first batch. `stepping` is how many workers of how many have stepped their
    envs; None: the run is in this `stage`."""
    if stepping is None:
        return stage
    done, started = stepping
    return "collecting the first batch" if done == started else f"{WAITING} ({done} of {started} workers have stepped)"


def format_line(view: View, stage: str = "") -> str:
    """Returns one short line for logs and pipes. `stage` is what the run does, if it is not collecting."""
    now = view.numbers
    if now.started is None:
        return f"[{clock(view.elapsed_s)}] {stage or WAITING}"
    parts = [
        f"[{clock(view.elapsed_s)}] {_frames(now, '/')}",
        *([] if view.rate is None else [f"{number(view.rate)}/s"]),
        f"return {number(now.mean_return)}",
        f"best {number(now.best_return)}",
    ]
    if now.taking_part is not None:
        parts.append(_members(now.taking_part))
    if stage or view.left_s:
        parts.append(stage or _left(view))
    return "  ".join(parts)


def format_details(view: View) -> list[str]:
    """Returns what `format_line` leaves out: shares of the time, and the trainer's scalars; at most two lines."""
    now = view.numbers
    if now.started is None:
        return []
    parts = [
        f"{now.num_episodes:,} episode{'s' * (now.num_episodes != 1)}",
        f"policy version {now.version}, lag {now.lag:.1f}",
    ]
    if view.workers:
        means = (sum(column) / len(view.workers) for column in zip(*(w.shares for w in view.workers), strict=True))
        shares = ", ".join(f"{name} {mean:.0%}" for name, mean in zip(_SHARES, means, strict=True))
        parts.append(f"workers: {shares}")
    parts += _trainer(view)
    if view.learners:
        waits = ", ".join(f"{others:.0%}" for _, others in view.learners)
        parts.append(f"waits of learners: {waits}")
    if now.checkpoint_s:
        parts.append(f"checkpoints: {now.checkpoint_s / view.elapsed_s:.2%} of the time")
    scalars = [f"{name} {scalar(value)}" for name, value in now.scalars.items()]
    return [f"  {' | '.join(texts)}" for texts in (parts, scalars) if texts]


def render_panel(
    view: View,
    title: str = "",
    charts: RenderableType | None = None,
    foot: str = "",
    stage: str = "",
    point: Point | None = None,
) -> RenderableType:
    """Returns the live display: `title`, a bar, another one for the sweep of the `point`, the sums, `charts`, a row for
    each worker and one for the trainer, its scalars, and `foot`; before the first batch, `stage`, which otherwise
    replaces the remaining time. Fits in 40 columns; where there are fewer than 80, it leaves out columns of the
    table."""
    now = view.numbers
    rows: list[RenderableType] = [_one_line(title, "bold")] if title else []
    dim_foot = [_one_line(foot, "dim")] if foot else []
    has_total = now.expected_frames >= 0
    of_sweep = [] if point is None or not point.num_left else [point.bar(view)]
    if now.started is None:
        waiting = Text(f"{stage or WAITING}, elapsed {clock(view.elapsed_s)}", style="dim")
        return Group(*rows, waiting, *([_Bars(of_sweep, has_total)] if of_sweep else []), *dim_foot)
    bar = ProgressBar(
        total=max(1, now.expected_frames), completed=now.frames, complete_style="green", finished_style="green"
    )
    left = stage or (_left(view) if view.left_s else "")
    of_run = bar, (_frames(now, " / "), f"elapsed {clock(view.elapsed_s)}", left)
    learning: list[str | Text] = [
        Text.assemble(
            *("return ", (number(now.mean_return), "bold green")),
            f" ({now.num_episodes:,} episode{'s' * (now.num_episodes != 1)})",
        ),
        Text.assemble("best ", (number(now.best_return), "green")),
        "" if now.target_return is None else f"target {now.target_return:g}",
    ]
    speed: list[str | Text] = [
        Text.assemble((number(view.rate), "bold"), f" frames/s {'overall' if view.is_summary else 'now'}"),
        "" if view.is_summary else f"{number(now.frames_per_s)} overall",
        f"version {now.version}",
        f"lag {now.lag:.1f}",
        f"checkpoints {now.checkpoint_s / view.elapsed_s:.2%}" if now.checkpoint_s else "",
        _members(now.taking_part) if now.taking_part is not None else "",
    ]
    rows += [_Bars([of_run, *of_sweep], has_total), _Parts(learning), _Parts(speed)]
    rows += [] if charts is None else [charts]
    if view.workers or view.trainer_share is not None:
        rows.append(_Workers(view))
    if (waits := _trainer(view)[1:]) and not view.is_summary:
        rows.append(Text(" ".join(waits), "yellow"))
    if now.scalars:
        rows.append(_Parts([Text(f"{printable(name)} {scalar(value)}", "cyan") for name, value in now.scalars.items()]))
    return Group(*rows, *dim_foot)


@dataclass(frozen=True)
class _Parts:
    """Texts in as few lines as possible, which end between two of them. Empty ones are left out."""

    parts: Sequence[str | Text]
    gap: str = "   "

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for part in [each for each in self.parts if each]:
            if line and line.cell_len + len(self.gap) + len(part) > options.max_width:
                yield line
                line = Text()
            line = line + self.gap + part if line else line + part
        yield line


@dataclass(frozen=True)
class _Bars:
    """Bars, each beside its texts, or above them where there is little room."""

    bars: Sequence[tuple[ProgressBar, tuple[str, ...]]]
    has_bars: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = zip(*(texts for _, texts in self.bars), strict=True)
        widths = [max(map(len, column)) + 2 for column in columns]
        width = min(options.max_width, _CHART[0])
        if width < sum(widths) + (_LEAST_BAR if self.has_bars else -2):
            for bar, texts in self.bars:
                if self.has_bars:
                    yield from (Constrain(bar, width), Segment.line())
                yield _Parts(texts, "  ")
            return
        grid = Table.grid(padding=(0, 2), expand=self.has_bars)
        if self.has_bars:
            grid.add_column(ratio=1)
        for _ in widths:
            grid.add_column(no_wrap=True)
        for bar, texts in self.bars:
            grid.add_row(*([bar] if self.has_bars else []), *texts)
        yield Constrain(grid, width)


def _one_line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _frames(now: Statistics, slash: str) -> str:
    """Returns the delivered frames; of an expected number, with their share."""
    if now.expected_frames < 0:
        return f"{now.frames:,} frames"
    share = math.floor(100 * min(1.0, now.frames / max(1, now.expected_frames)))
    return f"{now.frames:,}{slash}{now.expected_frames:,} frames ({share}%)"


def _left(view: View) -> str:
    """Returns the time until all frames are delivered; a limit if `trainer.target_return` may end the run earlier."""
    sign = "" if view.numbers.target_return is None else "<= "
    return f"ETA {sign}{clock(view.left_s or 0)}"


def _trainer(view: View) -> list[str]:
    """Returns the trainer's share of the time, and the bottleneck if one side mostly waits for the other."""
    if view.trainer_share is None:
        return []
    parts = [f"trainer: learn {view.trainer_share:.0%}"]
    for_others = sum(others for _, others in view.learners) / max(1, len(view.learners))
    idle = 1 - view.trainer_share - view.evaluation_share - for_others
    waits = [worker.shares[_SHARES.index("wait")] for worker in view.workers]
    if view.evaluation_share >= _DOMINATES:
        parts.append(f"bottleneck: evaluations (trainer waits {view.evaluation_share:.0%})")
    elif for_others >= _DOMINATES:
        parts.append(f"bottleneck: learners wait for each other ({for_others:.0%})")
    elif waits and min(view.trainer_share, sum(waits) / len(waits)) >= _DOMINATES:
        parts.append(f"bottleneck: trainer (workers idle {sum(waits) / len(waits):.0%})")
    elif idle >= _DOMINATES:
        parts.append(f"bottleneck: workers (trainer idle {idle:.0%})")
    return parts


def _members(taking_part: tuple[int, int]) -> str:
    ready, started = taking_part
    return f"{ready} of {started} workers"


@dataclass(frozen=True)
class _Workers:
    """The table of the workers, the trainer and the learners."""

    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = ["frames/s", *_SHARES, "lag", "learn", *[""] * bool(self.view.learners)]
        table = self._table(names)
        for name in _LEFT_OUT:
            if console.measure(table, options=options.update_width(_WIDEST)).maximum > options.max_width:
                names.remove(name)
                table = self._table(names)
        yield table

    def _table(self, names: Sequence[str]) -> Table:
        view = self.view
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("", justify="right")
        for name in names:
            table.add_column(name, justify="right", min_width=4)

        def add(head: str, rate: str, cells: dict[str, str]) -> None:
            table.add_row(head, *(({"frames/s": rate} | cells).get(name, "") for name in names))

        for worker in view.workers[:NUM_WORKERS_SHOWN]:
            shares = {name: f"{share:.0%}" for name, share in zip(_SHARES, worker.shares, strict=True)}
            add(f"worker {worker.worker}", number(worker.frames_per_s), shares | {"lag": str(worker.lag)})
        if len(view.workers) > NUM_WORKERS_SHOWN:
            table.add_row(f"+ {len(view.workers) - NUM_WORKERS_SHOWN} more", style="dim")
        if (share := view.trainer_share) is not None:
            cells = {"wait": f"{1 - share:.0%}", "lag": f"{view.numbers.lag:.1f}", "learn": f"{share:.0%}"}
            add("trainer", number(view.rate), cells)
        for rank, (workers, others) in enumerate(view.learners):
            learns = f"{max(0.0, 1 - workers - others):.0%}"
            cells = {"wait": f"{workers:.0%}", "learn": learns, "": f"waits for others {others:.0%}"}
            add(f"learner {rank}", "", cells)
        return table


def log_errors(errors: Sequence[BaseException], log: Path) -> None:
    """Appends the full tracebacks to `log`."""
    if not errors:
        return
    try:
        with open(log, "a") as file:
            for error in errors:
                file.write(traceback_of(error))
    except OSError as error:
        printing.message(f"cannot write {log}: {error}")


def print_result(result: Result, errors: Sequence[BaseException], log: Path, point: Point | None = None) -> None:
    """Prints the errors to standard error, then the table and the run folder to standard output; of a point, one line,
    and not which limit all points share. See `execute`."""
    for error in errors:
        printing.error(_named(point, format_error(error)))
    if errors:
        printing.message(f"full traceback: {log}")
        if result.batches and not _stays_complete(result):
            printing.message(_how_to_continue(result))
    elif point is None and result.exit_reason != ALL_DELIVERED:
        printing.message(result.exit_reason)
        if result.status is Status.INTERRUPTED:
            again = "nothing was collected yet: the same command begins the run again"
            printing.message(_how_to_continue(result) if result.batches else again)
        elif (option := limit_of(result.exit_reason)) == "run.max_minutes":
            printing.message(_how_to_train_longer(result, option))
    if point is not None:
        # Errors are told above; all points may share a limit.
        is_told = bool(errors) or limit_of(result.exit_reason) is not None
        printing.say(point.line(result, result.status) + ("" if is_told else f"  ({result.exit_reason})"))
    else:
        _print_table(result)


def _named(point: Point | None, text: str) -> str:
    """Returns what a run tells, in a sweep after the name of its point."""
    return text if point is None else f"{point.name}: {text}"


def _stays_complete(result: Result) -> bool:
    """Whether the run was complete before a resume that did not begin."""
    return (RunFolder(result.folder).read_result() or {}).get("status") == Status.COMPLETED


def _how_to_continue(result: Result) -> str:
    """Returns the command that resumes a run, or how to save checkpoints; not of a run that was too short for that."""
    if text := to_continue(RunFolder(result.folder)):
        return text
    advice = " Next time, save more often, for example with checkpoint.every_min=1." if result.wall_s > 60 else ""
    return f"no checkpoint was saved, so this run cannot be resumed.{advice}"


def to_continue(run_folder: RunFolder) -> str | None:
    """Returns the command that resumes a run; None without a checkpoint."""
    command = f"collectx resume {shlex.quote(printing.typed(run_folder.path))}"
    return f"to continue from the newest checkpoint: {command}" if run_folder.has_checkpoint else None


def print_completed(result: Result, changed: Sequence[str] = (), point: Point | None = None) -> None:
    """Prints that a run is already complete, how to continue it with the overrides `changed`, and its table; of a
    point, one line."""
    if point is not None:
        printing.say(point.line(result, "already done"))
        return
    option = limit_of(result.exit_reason)
    how = "To train longer, change the option that ended it."
    if option is not None:
        how = " ".join([_how_to_train_longer(result, option), *map(shlex.quote, changed)])
    printing.message(f"this run is already complete: {result.exit_reason}. {how}")
    _print_table(result)


def _how_to_train_longer(result: Result, option: str) -> str:
    return f"To train longer: collectx resume {shlex.quote(printing.typed(result.folder))} {option}=N"


def _print_table(result: Result) -> None:
    printing.print_run(result.folder.name, result.status, result.as_json(), result.folder)


def format_error(error: BaseException) -> str:
    """Returns the text of an error: type, without its module if it is collectx's, message, where in the user's code it
    was raised, and the frames of a worker's error that are not collectx's; of an error that collectx raised, which says
    the cause, only the user's. The trainer's log contains the full traceback."""
    is_ours = isinstance(error, CollectxError)
    text = f"{type_name(error)}: {text_of(error)}"
    notes = list(getattr(error, "__notes__", ()))
    if not any(TRACEBACK in note for note in notes) and not is_ours:
        frames = frames_of_user(error)
        notes += [f"raised in {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"] if frames else []
    lines = [line for note in notes for line in without_our_frames(note, is_ours)]
    return "\n".join([text, *(f"  {line}" for line in lines)])


def without_our_frames(note: str, only_users: bool = False) -> list[str]:
    """Returns the lines of a note; of a traceback in it, only the frames outside of collectx, and those of installed
    packages unless `only_users`."""
    head, _, remote = note.rstrip().partition(TRACEBACK)
    lines, is_shown = head.splitlines(), False
    for line in remote.splitlines():
        if frame := _FRAME.match(line):
            is_shown = not (frame["file"].startswith(_PACKAGE) or (only_users and is_installed(frame["file"])))
        if is_shown and line.startswith("  ") and line.strip(" ^~"):
            lines.append(line)
        is_shown = is_shown and line.startswith("  ")
    return lines
