"""The output of a run: live progress, as a rich display on a terminal and a plain line every few seconds elsewhere; at
the end the errors, a short table and the path of the run folder.

A thread of the trainer's process reads `Statistics` and draws the progress; deliveries never wait for it. The thread
shares the interpreter with the trainer, so it draws at most 4 times a second and spends at most 1 % of its time
drawing.
"""

from __future__ import annotations

import io
import math
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collectx.errors import CollectxError, printable, summary_of, text_of, traceback_of
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import ALL_DELIVERED, Result, type_name
from collectx.run.statistics import TIMES, Sampler, Statistics, View
from collectx.run.terminal import printing
from collectx.run.terminal.printing import print_line

NUM_WORKERS_SHOWN = 8
REFRESH_S = 0.25
PLAIN_S = 5.0
DRAWING_SHARE = 0.01
# The columns that show the shares of `TIMES`.
_SHARES = tuple(name.removesuffix("_s") for name in TIMES)
# If one side waits for this share of the time, the other is the bottleneck.
_DOMINATES = 0.6


class Progress:
    """Shows a run during the `with` block; the last state stays on the screen. The end of the block waits up to 2 s for
    the thread, which may hang on a pipe that no process reads, and then ends with the process."""

    def __init__(self, statistics: Statistics, console: Console | None = None, start_s: float | None = None):
        """`console` is standard output by default; `start_s` is when the run started, by `time.monotonic`, by default
        now."""
        self._console = console or Console()
        self._sampler = Sampler(statistics, time.monotonic() if start_s is None else start_s)
        self._statistics = statistics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collectx-progress", daemon=True)
        self._live: Live | None = None
        self._cell: Any = None
        if self._console.is_jupyter:
            # rich's own display in notebooks needs ipywidgets.
            from IPython.display import display

            self._cell = display(_html(Text("")), display_id=True)
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0)
        if self._live is not None:
            # Removes the display of a run without a batch.
            self._live.transient = not self._statistics.batches
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line above the display. Any thread may call it."""
        print_line(self._console, f"collectx: {text}")

    def _run(self) -> None:
        try:
            is_live = self._live is not None or self._cell is not None
            min_s = interval_s = REFRESH_S if is_live else PLAIN_S
            while not self._stop.wait(interval_s):
                started_s = time.thread_time()
                self._draw()
                interval_s = max(min_s, (time.thread_time() - started_s) / DRAWING_SHARE)
            if self._statistics.batches:
                self._draw()
        except Exception as error:  # a display that cannot be drawn (a closed pipe) must not end the run
            print(f"collectx: progress display stopped: {summary_of(error)}", file=sys.stderr)

    def _draw(self) -> None:
        view = self._sampler.view(time.monotonic())
        if self._live is not None:
            self._live.update(render_panel(view), refresh=True)
        elif self._cell is not None:
            self._cell.update(_html(render_panel(view)))
        else:
            print_line(self._console, format_line(view))


def _html(panel: RenderableType) -> Any:
    """Returns the panel as HTML, for a notebook."""
    from IPython.display import HTML

    console = Console(file=io.StringIO(), record=True, force_jupyter=False, width=120)
    console.print(panel)
    return HTML(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))


def format_line(view: View) -> str:
    """Returns a view as one line, for logs and pipes."""
    now = view.numbers
    if not now.batches:
        return f"[{clock(view.elapsed_s)}] waiting for the first batch"
    total = f"/{now.total_frames:,}" if now.total_frames >= 0 else ""
    parts = [
        f"[{clock(view.elapsed_s)}] {now.frames:,}{total} frames",
        f"{number(view.now_per_s)}/s now, {number(now.frames_per_s)}/s overall",
        f"return {number(now.mean_return)} ({now.num_episodes:,} episodes)",
        f"version {now.version}, lag {now.lag:.1f}",
    ]
    if now.taking_part is not None:
        parts.append(_members(now.taking_part))
    if view.workers:
        means = (sum(column) / len(view.workers) for column in zip(*(w.shares for w in view.workers), strict=True))
        parts.append(" ".join(f"{name} {mean:.0%}" for name, mean in zip(_SHARES, means, strict=True)))
    parts += _trainer(view)
    if now.checkpoint_s:
        parts.append(f"checkpoints {now.checkpoint_s / view.elapsed_s:.2%}")
    if view.left_s is not None:
        parts.append(_left(view))
    parts.extend(f"{name} {number(value)}" for name, value in now.scalars.items())
    return " | ".join(parts)


def render_panel(view: View, charts: RenderableType | None = None) -> RenderableType:
    """Returns the live display: a bar, the sums, `charts`, a row for each worker and one for the trainer, and its
    scalars."""
    now = view.numbers
    if not now.batches:
        return Text(f"waiting for the first batch, {clock(view.elapsed_s)}", style="dim")
    head = Table.grid(padding=(0, 2))
    total = f" / {now.total_frames:,}" if now.total_frames >= 0 else ""
    bar = ProgressBar(total=max(1, now.total_frames), completed=now.frames, width=24)
    head.add_row(
        *([bar] if now.total_frames >= 0 else []),
        f"[bold]{now.frames:,}[/]{total} frames",
        f"[bold]{number(view.now_per_s)}[/]/s now",
        f"{number(now.frames_per_s)}/s overall",
        clock(view.elapsed_s),
        _left(view) if view.left_s is not None else "",
    )
    learning = Text.assemble(
        "return ",
        (number(now.mean_return), "bold green"),
        f" ({now.num_episodes:,} episodes)   version {now.version}   lag {now.lag:.1f}",
        f"   checkpoints {now.checkpoint_s / view.elapsed_s:.2%}" if now.checkpoint_s else "",
        f"   {_members(now.taking_part)}" if now.taking_part is not None else "",
    )
    rows: list[RenderableType] = [head, learning, *([] if charts is None else [charts])]
    if view.workers or view.trainer_share is not None:
        rows.append(_table(view))
    if waits := _trainer(view)[1:]:
        rows.append(Text(*waits))
    if now.scalars:
        scalars = "   ".join(f"{name} {number(value)}" for name, value in now.scalars.items())
        rows.append(Text(printable(scalars), style="cyan"))
    return Group(*rows)


def _left(view: View) -> str:
    """Returns the time until all frames are delivered; an upper limit if `trainer.target_return` may end the run
    earlier."""
    text, target = f"{clock(view.left_s or 0)} left", view.numbers.target_return
    return text if target is None else f"at most {text} (until target_return={target:g})"


def _trainer(view: View) -> list[str]:
    """Returns the trainer's share of the time, and the bottleneck if one side mostly waits for the other."""
    if view.trainer_share is None:
        return []
    parts = [f"trainer {view.trainer_share:.0%}"]
    waits = [worker.shares[_SHARES.index("wait")] for worker in view.workers]
    if waits and min(view.trainer_share, sum(waits) / len(waits)) >= _DOMINATES:
        parts.append(f"bottleneck: trainer (workers idle {sum(waits) / len(waits):.0%})")
    elif 1 - view.trainer_share >= _DOMINATES:
        parts.append(f"bottleneck: workers (trainer idle {1 - view.trainer_share:.0%})")
    return parts


def _members(taking_part: tuple[int, int]) -> str:
    ready, started = taking_part
    return f"{ready} of {started} workers"


def _table(view: View) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right")
    for name in ("frames/s", *_SHARES, "lag", "learn"):
        table.add_column(name, justify="right", min_width=6)
    for worker in view.workers[:NUM_WORKERS_SHOWN]:
        shares = (f"{share:.0%}" for share in worker.shares)
        table.add_row(f"worker {worker.worker}", number(worker.frames_per_s), *shares, str(worker.lag))
    if len(view.workers) > NUM_WORKERS_SHOWN:
        table.add_row(f"+ {len(view.workers) - NUM_WORKERS_SHOWN} more", style="dim")
    if view.trainer_share is not None:
        columns = {"wait": f"{1 - view.trainer_share:.0%}", "lag": f"{view.numbers.lag:.1f}"}
        cells = (columns.get(name, "") for name in (*_SHARES, "lag"))
        table.add_row("trainer", number(view.now_per_s), *cells, f"{view.trainer_share:.0%}")
    return table


def clock(seconds: float) -> str:
    """Returns seconds as a clock shows them: `75.2` as `1:15`, `3675` as `1:01:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None) -> str:
    """Returns a number short enough for a display: `12,345`, `3.14`, `0.00021`; `-` for unknown."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


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


def print_result(result: Result, errors: Sequence[BaseException], log: Path) -> None:
    """Prints the errors to standard error, then the table and the run folder to standard output."""
    for error in errors:
        printing.message(format_error(error))
    if errors:
        printing.message(f"full traceback: {log}")
        if result.batches:
            printing.message(_how_to_continue(result.folder))
    elif result.exit_reason != ALL_DELIVERED:
        printing.message(result.exit_reason)
    _print_table(result)


def _how_to_continue(folder: Path) -> str:
    """Returns the command that resumes a failed run, or how to save checkpoints."""
    if RunFolder(folder).has_checkpoint:
        return f"to continue from the newest checkpoint: collectx resume {folder}"
    options = "checkpoint.every_batches or checkpoint.every_min"
    return f"no checkpoint was saved, so this run cannot be resumed. Save more often with {options}."


def print_completed(result: Result) -> None:
    """Prints that a run is already complete, and the run's table."""
    if result.exit_reason == ALL_DELIVERED:
        how = f"To train longer: collectx resume {result.folder} collector.total_frames=N"
    else:
        how = "To train longer, change the option that ended it."
    printing.message(f"already complete: {result.exit_reason}. {how}")
    _print_table(result)


def _print_table(result: Result) -> None:
    printing.print_run(result.folder.name, result.status, result.as_json(), result.folder)


def format_error(error: BaseException) -> str:
    """Returns the text of an error: type, message, where it was raised, and the remote traceback of a worker's
    error."""
    text = f"{type_name(error)}: {text_of(error)}"
    notes = list(getattr(error, "__notes__", ()))
    if not notes and not isinstance(error, CollectxError):
        frames = traceback.extract_tb(error.__traceback__)
        notes = [f"raised in {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"] if frames else []
    lines = [line for note in notes for line in note.rstrip().splitlines()]
    return "\n".join([text, *(f"  {line}" for line in lines)])
