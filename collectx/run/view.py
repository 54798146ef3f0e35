"""What the progress display says, as plain data and as text; the drawing only, no thread and no terminal.

Used by progress.py in the trainer's process. Must not know collectors or trainers.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from collectx.run.statistics import Statistics, WorkerTotals

NUM_WORKERS_SHOWN = 8
NOW_S = 5.0
"""How far back "now" looks, in seconds."""


@dataclass(frozen=True)
class WorkerView:
    """One worker over the last `NOW_S`: frames per second, shares of env, policy, wait, send; and its newest lag."""

    worker: int
    frames_per_s: float
    shares: tuple[float, float, float, float]
    lag: int


@dataclass(frozen=True)
class View:
    """One moment of a run; rates are None while unknown, `total_frames` is -1 for an endless run."""

    frames: int
    total_frames: int
    batches: int
    elapsed_s: float
    now_per_s: float | None
    overall_per_s: float | None
    mean_return: float
    num_episodes: int
    version: int
    lag: float
    workers: tuple[WorkerView, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)

    @property
    def left_s(self) -> float | None:
        """Time left at the present rate; None while unknown."""
        rate = self.now_per_s or self.overall_per_s
        if not rate or self.total_frames < 0:
            return None
        return max(0, self.total_frames - self.frames) / rate


@dataclass(frozen=True)
class _Sample:
    time_s: float
    frames: int
    workers: dict[int, WorkerTotals]


class Sampler:
    """Turns `Statistics` into views; remembers the last seconds, so that "now" means now. Not thread-safe."""

    def __init__(self, statistics: Statistics, start_s: float):
        """`start_s` is the beginning of `elapsed_s`, on the clock of `view`."""
        self._statistics = statistics
        self._start_s = start_s
        self._samples: deque[_Sample] = deque()

    def view(self, now_s: float) -> View:
        """The view at `now_s`."""
        now = self._statistics
        sample = _Sample(now_s, now.frames, {worker: copy.copy(totals) for worker, totals in now.workers.items()})
        if now.batches:
            self._append(sample)
        # Back to a moment with fewer frames: while batches are awaited for longer than `NOW_S`, the rate falls.
        while (
            len(self._samples) > 2
            and self._samples[1].time_s <= now_s - NOW_S
            and self._samples[1].frames < sample.frames
        ):
            self._samples.popleft()
        since = self._samples[0] if self._samples else sample
        passed_s = now_s - since.time_s
        frames = sample.frames - since.frames
        rate = now.rate
        if rate is not None and passed_s > 0:
            # All frames came before the first look: the longer ago that is, the lower the rate.
            rate = min(rate, sample.frames / passed_s)
        return View(
            frames=sample.frames,
            total_frames=now.total_frames,
            batches=now.batches,
            elapsed_s=now_s - self._start_s,
            now_per_s=frames / passed_s if frames and passed_s > 0 else rate,
            overall_per_s=now.frames_per_s,
            mean_return=now.mean_return,
            num_episodes=now.num_episodes,
            version=now.version,
            lag=now.lag,
            workers=tuple(self._workers(sample, since, passed_s)),
            scalars=now.scalars,
        )

    def _append(self, sample: _Sample) -> None:
        """Of a time without frames only the ends are kept."""
        if len(self._samples) > 2 and self._samples[-2].frames == self._samples[-1].frames == sample.frames:
            self._samples.pop()
        self._samples.append(sample)

    def _workers(self, sample: _Sample, since: _Sample, passed_s: float) -> list[WorkerView]:
        views = []
        for worker, totals in sorted(sample.workers.items()):
            before = since.workers.get(worker)
            if before is not None and before.frames == totals.frames:
                before = None  # nothing new from it in the last seconds: what is known of it since the start
            frames = totals.frames - (before.frames if before else 0)
            rate = frames / passed_s if before and passed_s > 0 else 0.0
            views.append(WorkerView(worker, rate, totals.shares(before), totals.lag))
        return views


def line(view: View) -> str:
    """One line for logs and pipes."""
    if not view.batches:
        return f"[{clock(view.elapsed_s)}] waiting for the first batch"
    total = f"/{view.total_frames:,}" if view.total_frames >= 0 else ""
    parts = [
        f"[{clock(view.elapsed_s)}] {view.frames:,}{total} frames",
        f"{number(view.now_per_s)}/s now, {number(view.overall_per_s)}/s overall",
        f"return {number(view.mean_return)} ({view.num_episodes:,} episodes)",
        f"version {view.version}, lag {view.lag:.1f}",
    ]
    if view.workers:
        names = ("env", "policy", "wait", "send")
        means = (sum(column) / len(view.workers) for column in zip(*(w.shares for w in view.workers), strict=True))
        parts.append(" ".join(f"{name} {mean:.0%}" for name, mean in zip(names, means, strict=True)))
    if view.left_s is not None:
        parts.append(f"{clock(view.left_s)} left")
    parts.extend(f"{name} {number(value)}" for name, value in view.scalars.items())
    return " | ".join(parts)


def panel(view: View) -> RenderableType:
    """The live display: a bar, the sums, one line per worker, the trainer's scalars."""
    if not view.batches:
        return Text(f"waiting for the first batch, {clock(view.elapsed_s)}", style="dim")
    head = Table.grid(padding=(0, 2))
    total = f" / {view.total_frames:,}" if view.total_frames >= 0 else ""
    bar = ProgressBar(total=max(1, view.total_frames), completed=view.frames, width=24)
    head.add_row(
        *([bar] if view.total_frames >= 0 else []),
        f"[bold]{view.frames:,}[/]{total} frames",
        f"[bold]{number(view.now_per_s)}[/]/s now",
        f"{number(view.overall_per_s)}/s overall",
        clock(view.elapsed_s),
        f"{clock(view.left_s)} left" if view.left_s is not None else "",
    )
    learning = Text.assemble(
        "return ",
        (number(view.mean_return), "bold green"),
        f" ({view.num_episodes:,} episodes)   version {view.version}   lag {view.lag:.1f}",
    )
    rows: list[RenderableType] = [head, learning]
    if view.workers:
        rows.append(_worker_table(view.workers))
    if view.scalars:
        rows.append(Text("   ".join(f"{name} {number(value)}" for name, value in view.scalars.items()), style="cyan"))
    return Group(*rows)


def _worker_table(workers: tuple[WorkerView, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker", justify="right")
    for name in ("frames/s", "env", "policy", "wait", "send", "lag"):
        table.add_column(name, justify="right", min_width=6)
    for view in workers[:NUM_WORKERS_SHOWN]:
        shares = (f"{share:.0%}" for share in view.shares)
        table.add_row(str(view.worker), number(view.frames_per_s), *shares, str(view.lag))
    if len(workers) > NUM_WORKERS_SHOWN:
        table.add_row(f"+ {len(workers) - NUM_WORKERS_SHOWN} more", style="dim")
    return table


def clock(seconds: float) -> str:
    """`75.2` as `1:15`, `3675` as `1:01:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None) -> str:
    """A number short enough for a display: `12,345`, `3.14`, `0.00021`; `-` for unknown."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
