"""The numbers of a run: `Statistics` from its deliveries, `MetricsTail` from its `metrics.jsonl`, and the `View` of
them at one moment that the progress display shows.

`Statistics` is written by the collection in the trainer's main thread and read by the progress display in another:
attributes are replaced or grow, so a reader sees the current or the previous numbers.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.errors import DamagedFile
from collectx.run.files import JsonLinesTail

if TYPE_CHECKING:
    from collectx.collector.batch_info import Delivery
    from collectx.transport.base import BatchReport

RETURN_WINDOW = 100
"""Number of the last finished episodes in `mean_return`."""
NOW_S = 5.0
"""Seconds over which the current rates are averaged."""


@dataclass(slots=True)
class WorkerTotals:
    """One worker's sums since the start.

    Attributes:
        env_s, policy_s, wait_s, send_s: as in `BatchReport`.
        frames: frames delivered from it.
        lag: how many versions its last part was behind the newest.
    """

    env_s: float = 0.0
    policy_s: float = 0.0
    wait_s: float = 0.0
    send_s: float = 0.0
    frames: int = 0
    lag: int = 0

    def add(self, timings: BatchReport, lag: int) -> None:
        self.env_s += timings.env_s
        self.policy_s += timings.policy_s
        self.wait_s += timings.wait_s
        self.send_s += timings.send_s
        self.frames += timings.frames
        self.lag = lag

    def shares(self, since: WorkerTotals | None = None) -> tuple[float, float, float, float]:
        """Shares of the measured time in env, policy, waiting and sending, since an earlier copy; they sum to 1, or are
        all 0 without measurements."""
        before = since or WorkerTotals()
        spent = (
            self.env_s - before.env_s,
            self.policy_s - before.policy_s,
            self.wait_s - before.wait_s,
            self.send_s - before.send_s,
        )
        total = sum(spent)
        if total <= 0:
            return (0.0, 0.0, 0.0, 0.0)
        return (spent[0] / total, spent[1] / total, spent[2] / total, spent[3] / total)


class Statistics:
    """Sums and rates of the delivered batches.

    Attributes:
        total_frames: frames that the run will deliver; -1 for an endless one.
        scalars: the newest value of every scalar that the trainer logged.
        frames, batches, num_episodes: sums.
        waited_s: total time that the trainer waited for batches.
        first_s, last_s: when the first and the last batch were delivered, on the caller's clock; None before.
        rate: frames of the last batch divided by the time since the previous delivery; None before the second.
        mean_return: mean return of the last `RETURN_WINDOW` finished episodes; nan before the first.
        version: newest published policy version at the last delivery.
        lag: mean lag of the last batch's frames, in versions.
        workers: `WorkerTotals` by worker index.
    """

    def __init__(self, total_frames: int) -> None:
        self.total_frames = total_frames
        self.scalars: dict[str, float] = {}
        self.frames = 0
        self.batches = 0
        self.num_episodes = 0
        self.waited_s = 0.0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.rate: float | None = None
        self.mean_return = math.nan
        self.version = 0
        self.lag = 0.0
        self.workers: dict[int, WorkerTotals] = {}
        self._first_frames = 0
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)

    def add(self, delivery: Delivery, now_s: float) -> None:
        """Counts one delivery, made at `now_s` on a monotonic clock."""
        if self.last_s is None:
            self.first_s = now_s
            self._first_frames = delivery.frames
        elif now_s > self.last_s:
            self.rate = delivery.frames / (now_s - self.last_s)
        self.last_s = now_s
        self.frames += delivery.frames
        self.batches += 1
        self.waited_s += delivery.waited_s
        self.version = delivery.version
        total_lag = 0
        episodes = self.num_episodes
        for part in delivery.parts:
            lag = delivery.version - part.report.policy_version
            total_lag += lag * part.report.frames
            if part.worker not in self.workers:
                # A new dict, not a new entry: the display may be iterating over the old one.
                self.workers = self.workers | {part.worker: WorkerTotals()}
            self.workers[part.worker].add(part.report, lag)
            self.num_episodes += len(part.report.returns)
            self._returns.extend(part.report.returns[-RETURN_WINDOW:].tolist())
        self.lag = total_lag / delivery.frames if delivery.frames else 0.0
        if self.num_episodes > episodes:
            self.mean_return = math.fsum(self._returns) / len(self._returns)

    @property
    def frames_per_s(self) -> float | None:
        """Frames after the first batch, divided by the time from the first delivery to the last; None before the
        second."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (self.frames - self._first_frames) / (self.last_s - self.first_s)


class MetricsTail(Statistics):
    """`Statistics` that reads `metrics.jsonl`; times are those of its lines, in unix seconds."""

    def __init__(self, metrics: Path, total_frames: int):
        super().__init__(total_frames)
        self._lines = JsonLinesTail(metrics)

    def update(self) -> bool:
        """Reads the lines added since the last call; returns whether there were any. Blocks for the disk only. After a
        restart of the job, the file is read from its beginning.

        Raises:
            DamagedFile: a line cannot be read, or is not that of a batch.
        """
        lines, restarted = self._lines.read()
        if restarted:
            super().__init__(self.total_frames)
        try:
            for line in lines:
                self._add_line(line)
        except (KeyError, TypeError) as error:
            raise DamagedFile([f"{self._lines.path}: a line is not of a batch: {error!r}"]) from error
        return bool(lines)

    def _add_line(self, line: dict[str, Any]) -> None:
        if self.first_s is None:
            self.first_s = line["time"]
            self._first_frames = line["batch_frames"]
        self.last_s = line["time"]
        self.rate = line["frames_per_s"]
        self.frames = line["frames"]
        self.batches = line["batch"] + 1
        self.waited_s += line["waited_s"]
        self.version = line["version"]
        self.lag = line["lag"]
        self.num_episodes += line["episodes"]
        self.mean_return = math.nan if line["mean_return"] is None else line["mean_return"]
        self.scalars = self.scalars | line.get("scalars", {})
        for part in line["workers"]:
            if part["worker"] not in self.workers:
                self.workers = self.workers | {part["worker"]: WorkerTotals()}
            totals = self.workers[part["worker"]]
            for name in ("env_s", "policy_s", "wait_s", "send_s", "frames"):
                setattr(totals, name, getattr(totals, name) + part[name])
            totals.lag = part["lag"]


@dataclass(frozen=True)
class WorkerView:
    """One worker over the last `NOW_S`: frames per second, shares of env, policy, wait and send, and its current
    lag."""

    worker: int
    frames_per_s: float
    shares: tuple[float, float, float, float]
    lag: int


@dataclass(frozen=True)
class View:
    """The numbers of a run at one moment; rates are None while unknown, `total_frames` is -1 for an endless run."""

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
        """Remaining time at the current rate; None while unknown."""
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
    """Makes views of `Statistics`; keeps samples of the last seconds for the current rates. Not thread-safe."""

    def __init__(self, statistics: Statistics, start_s: float):
        """`start_s` is the zero of `elapsed_s`, on the clock of `view`."""
        self._statistics = statistics
        self._start_s = start_s
        self._samples: deque[_Sample] = deque()

    def view(self, now_s: float) -> View:
        """The view at `now_s`."""
        now = self._statistics
        sample = _Sample(now_s, now.frames, {worker: copy.copy(totals) for worker, totals in now.workers.items()})
        if now.batches:
            self._append(sample)
        # Keeps a sample with fewer frames: while a batch takes longer than `NOW_S`, the rate falls.
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
            # All frames came before the first sample: the rate falls with time.
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
        """Keeps only the first and last of samples without new frames."""
        if len(self._samples) > 2 and self._samples[-2].frames == self._samples[-1].frames == sample.frames:
            self._samples.pop()
        self._samples.append(sample)

    def _workers(self, sample: _Sample, since: _Sample, passed_s: float) -> list[WorkerView]:
        views = []
        for worker, totals in sorted(sample.workers.items()):
            before = since.workers.get(worker)
            if before is not None and before.frames == totals.frames:
                before = None  # no frames in the last seconds: the average since the start
            frames = totals.frames - (before.frames if before else 0)
            rate = frames / passed_s if before and passed_s > 0 else 0.0
            views.append(WorkerView(worker, rate, totals.shares(before), totals.lag))
        return views
