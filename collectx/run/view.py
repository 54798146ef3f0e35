"""The numbers of the progress display at one moment, as plain data.

Used by display.py in the trainer's process, and by a command that watches jobs.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from collectx.run.statistics import Statistics, WorkerTotals

NOW_S = 5.0
"""Seconds over which the current rates are averaged."""


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
