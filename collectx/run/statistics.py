"""The numbers of a run: `Statistics` from its deliveries, `MetricsTail` from its `metrics.jsonl`, and `View`, their
state at one moment, for the progress display.

The collection writes `Statistics` in the trainer's main thread, and the progress display reads it in another one.
Attributes are only replaced or grow, so a reader sees the current or the previous numbers.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.config.schema.trainer import RETURN_WINDOW
from collectx.errors import DamagedFileError
from collectx.run.folder.batch_line import TIMES, BatchLine, PartTotals
from collectx.run.folder.files import JsonLinesTail

if TYPE_CHECKING:
    import numpy as np

    from collectx.collector.batch_info import BatchInfo

RATE_WINDOW_S = 10.0
"""Seconds over which the current rates are averaged."""

# The sums, the newest values, and where counting started, by their names in a checkpoint.
_SUMS = (
    *("frames", "batches", "num_episodes", "waited_s", "mean_return", "best_return", "version", "lag", "checkpoint_s"),
    *("evaluation_s", "best_frames", "_first_frames"),
)


def better_return(best: float, mean: float, num_before: float) -> float:
    """Returns the best mean return, now that there is another one, `mean`. `best` is the best before, nan before the
    first; it does not count if it is of fewer than `RETURN_WINDOW` episodes, as it may be high by luck. `num_before` is
    the number of episodes before this mean."""
    return max(best, mean) if num_before >= RETURN_WINDOW and best == best else mean


# Maximum number of points of a `Curve`.
_MAX_POINTS = 2000


class Curve(list[tuple[float, int, float]]):
    """Seconds since the first batch, frames and mean return of at most `_MAX_POINTS` batches."""

    def add(self, statistics: Statistics) -> None:
        """Adds a point for the last batch, if there is a new one."""
        if statistics.first_s is None or statistics.last_s is None or (self and self[-1][1] == statistics.frames):
            return
        if len(self) >= _MAX_POINTS:
            del self[1::2]
        self.append((statistics.last_s - statistics.first_s, statistics.frames, statistics.mean_return))


class Statistics:
    """Sums and rates of the delivered batches.

    Attributes:
        expected_frames: frames that the run will deliver unless the trainer ends it; -1 for an endless run.
        target_return: the trainer may end the run at this mean return; None: no such limit.
        scalars: the newest value of every scalar that the trainer logged.
        frames, batches, num_episodes: how many were delivered; episodes count when they end.
        waited_s: seconds in which the trainer waited for batches.
        checkpoint_s: seconds in which checkpoints were written.
        evaluation_s: seconds in which the trainer waited for evaluations.
        first_s, last_s: when the first and the last batch were delivered, on the caller's clock; None before.
        active_s: `last_s` without the seconds in which the trainer waited for evaluations.
        started: `active_s` and `waited_s` at this process's first delivery; None before. Earlier time counts as
            start-up.
        rate: the last batch's frames divided by the seconds since the previous delivery; None before the second.
        metrics: the mean of each of `env.metrics` that has a value, over the newest batches that together contain
            `RETURN_WINDOW` values. Also part of `scalars`.
        mean_return: mean return of the last `RETURN_WINDOW` finished episodes; nan before the first.
        best_return: highest `mean_return` over complete windows; until there is one, the current mean.
        best_frames: the frames at `best_return`.
        version: newest published policy version at the last delivery.
        lag: mean lag of the last batch's frames, in versions.
        learners: with several learners, the seconds for which each has waited for its workers, and for the others.
        taking_part: how many workers take part, and how many were started; None if all take part.
        curve: the mean return over the batches.
    """

    def __init__(
        self,
        total_frames: int,
        target_return: float | None = None,
        metrics: Sequence[str] = (),
        expected_frames: int | None = None,
    ) -> None:
        self.total_frames = total_frames
        self.expected_frames = total_frames if expected_frames is None else expected_frames
        self.target_return = target_return
        self.metrics: dict[str, float] = {}
        self.scalars: dict[str, float] = {}
        self.frames = 0
        self.batches = 0
        self.num_episodes = 0
        self.waited_s = 0.0
        self.checkpoint_s = 0.0
        self.evaluation_s = 0.0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.active_s = 0.0
        self.rate: float | None = None
        self.mean_return = math.nan
        self.best_return = math.nan
        self.best_frames = 0
        self.version = 0
        self.lag = 0.0
        self.workers: dict[int, PartTotals] = {}
        self.learners: list[tuple[float, float]] = []
        self.taking_part: tuple[int, int] | None = None
        self.started: tuple[float, float] | None = None
        self.curve = Curve()
        self._first_frames = 0
        # Sums and counts of each metric in the last batches: of episodes or, for `step_mean/NAME`, of frames.
        self._recent: dict[str, deque[tuple[float, float]]] = {name: deque() for name in metrics}
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)

    @property
    def missing_metrics(self) -> list[str]:
        """The names of `env.metrics` without a value."""
        return [name for name in self._recent if name not in self.metrics]

    def age_s(self, now_s: float) -> float:
        """Returns the seconds since the last delivery at `now_s`, on the clock of `add`; 0 before the first."""
        return 0.0 if self.last_s is None else now_s - self.last_s

    def earlier(self) -> tuple[float, Statistics] | None:
        """Returns the numbers at an earlier delivery, and the seconds from it to the last one; None if unknown."""
        return None

    def add(self, info: BatchInfo, now_s: float) -> None:
        """Counts one batch, delivered at `now_s` on a monotonic clock."""
        if self.last_s is None or self.first_s is None:
            self.first_s = now_s
            self._first_frames = info.frames
        elif self.started is None:
            # Like a run's first batch, the first one after a resume does not count in the rate, nor does start-up.
            self.first_s += now_s - self.last_s
            self._first_frames += info.frames
        elif now_s > self.last_s:
            self.rate = info.frames / (now_s - self.last_s)
        self.last_s = now_s
        self.frames += info.frames
        self.batches += 1
        self.active_s = now_s - self.evaluation_s
        self.waited_s += info.waited_s
        if self.started is None:
            self.started = self.active_s, self.waited_s
        self._add_learners(info.learners)
        self.version = info.version
        total_lag = 0
        episodes = self.num_episodes
        for part in info.parts:
            report = part.report
            lag, returns = info.version - report.policy_version, report.returns
            total_lag += lag * report.frames
            spent_s, total_return = tuple(getattr(report, name) for name in TIMES), float(returns.sum())
            self._totals(part.worker).add(PartTotals(spent_s, report.frames, lag, len(returns), total_return))
            self.num_episodes += len(returns)
            self._returns.extend(returns[-RETURN_WINDOW:].tolist())
        if self._recent:
            self._add_metrics(sum(part.report.metrics for part in info.parts))
        self.lag = total_lag / info.frames if info.frames else 0.0
        if self.num_episodes > episodes:
            self._add_mean(math.fsum(self._returns) / len(self._returns), episodes)
        self.curve.add(self)

    def _add_learners(self, times: Sequence[Sequence[float]]) -> None:
        before = self.learners or [(0.0, 0.0)] * len(times)
        self.learners = [(a + c, b + d) for (a, b), (c, d) in zip(before, times, strict=True)] if times else before

    def _add_mean(self, mean_return: float, num_before: float) -> None:
        self.mean_return, before = mean_return, self.best_return
        self.best_return = better_return(before, mean_return, num_before)
        if self.best_return != before:
            self.best_frames = self.frames

    @property
    def has_fallen(self) -> bool:
        """Whether the mean return is far below its best: by more than half of what it had risen by since its first
        value, and, so that chance does not count, by more than the standard deviation of the last episodes' returns."""
        first = next((value for _, _, value in self.curve if value == value), math.nan)
        fall = self.best_return - self.mean_return
        deviation = math.hypot(*(each - self.mean_return for each in self._returns)) / math.sqrt(RETURN_WINDOW)
        return fall > (self.best_return - first) / 2 and fall > deviation

    def _add_metrics(self, totals: Any) -> None:
        """Adds the sums and counts of one batch, `[2, metrics]`."""
        for (name, recent), total, count in zip(self._recent.items(), *totals.tolist(), strict=True):
            if not count:
                continue
            recent.append((total, count))
            while sum(n for _, n in recent) - recent[0][1] >= RETURN_WINDOW:
                recent.popleft()
            # New dicts: the display may be iterating over the old ones.
            self.metrics = self.metrics | {name: math.fsum(s for s, _ in recent) / sum(n for _, n in recent)}
        self.scalars = self.scalars | self.metrics

    def copy(self) -> Statistics:
        """Returns the current numbers, which later batches do not change."""
        copied = copy.copy(self)
        copied.workers = {worker: copy.copy(totals) for worker, totals in self.workers.items()}
        return copied

    def state(self) -> dict[str, Any]:
        """Returns a copy as plain data, for `load`."""
        elapsed_s = None if self.first_s is None or self.last_s is None else self.last_s - self.first_s
        return {
            "sums": {name: getattr(self, name) for name in _SUMS},
            "elapsed_s": elapsed_s,
            "scalars": dict(self.scalars),
            "returns": list(self._returns),
            "episode_metrics": {name: list(recent) for name, recent in self._recent.items()},
            "workers": {worker: asdict(totals) for worker, totals in self.workers.items()},
        }

    def load(self, state: dict[str, Any], now_s: float) -> None:
        """Continues from a state that `state` returned. `now_s` is the current time on the clock of `add`."""
        for name, value in state["sums"].items():
            setattr(self, name, value)
        if state["elapsed_s"] is not None:
            self.first_s, self.last_s = now_s - state["elapsed_s"], now_s
            self.active_s = now_s - self.evaluation_s
        self.scalars = state["scalars"]
        self._returns.extend(state["returns"])
        for name, recent in state["episode_metrics"].items():
            if name in self._recent:
                self._recent[name].extend(map(tuple, recent))
        self.metrics = {name: self.scalars[name] for name, recent in self._recent.items() if recent}
        self.workers = {worker: PartTotals(**totals) for worker, totals in state["workers"].items()}

    def _totals(self, worker: int) -> PartTotals:
        if worker not in self.workers:
            # A new dict, not a new entry: the display may be iterating over the old one.
            self.workers = self.workers | {worker: PartTotals()}
        return self.workers[worker]

    @property
    def frames_per_s(self) -> float | None:
        """The frames after the first batch, divided by the seconds from the first delivery to the last; None before the
        second."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (self.frames - self._first_frames) / (self.last_s - self.first_s)


# Only the end of a longer `metrics.jsonl` is read, some thousand batches: a million lines would take 15 s.
_NEWEST_BYTES = 1 << 22


class MetricsTail(Statistics):
    """`Statistics` that reads `metrics.jsonl`. `last_s - first_s` sums the batch times, without the pause before a
    resume. The first `update` reads only the last `_NEWEST_BYTES` of the file: times and the overall rate cover the
    lines that were read; frames, batches and episodes cover the complete run. `earlier` is between one and two
    `RATE_WINDOW_S` before the last line, so that the current rate is known at once."""

    def __init__(
        self, metrics: Path, total_frames: int, target_return: float | None = None, expected_frames: int | None = None
    ):
        super().__init__(total_frames, target_return, expected_frames=expected_frames)
        self._time = math.nan
        # Copies of the numbers, `RATE_WINDOW_S` apart; the first one is `earlier`.
        self._copies: deque[Statistics] = deque(maxlen=2)
        self._lines = JsonLinesTail(metrics, _NEWEST_BYTES)

    def age_s(self, now_s: float) -> float:
        """Returns the seconds since the last line was written, by the clocks of both hosts."""
        return 0.0 if self.last_s is None else max(0.0, time.time() - self._time)

    def forget_rate(self) -> None:
        """Leaves the lines so far out of the current rate."""
        self.rate = None
        self._copies.clear()

    def earlier(self) -> tuple[float, Statistics] | None:
        if self.last_s is None or not self._copies or (then_s := self._copies[0].last_s) is None:
            return None
        return self.last_s - then_s, self._copies[0]

    def update(self) -> bool:
        """Reads the lines added since the last call; returns whether there were any. Blocks for the disk only. After a
        restart of the job, the file is read from its beginning. Raises `DamagedFileError` if a line cannot be read, or
        does not describe a batch."""
        has_lines = False
        while True:
            lines, was_replaced = self._lines.read()
            if was_replaced:
                super().__init__(self.total_frames, self.target_return, expected_frames=self.expected_frames)
                self.forget_rate()
            if not lines:
                return has_lines
            has_lines = True
            for line in lines:
                self._add_line(BatchLine.of(line, self._lines.path))

    def _add_line(self, line: BatchLine) -> None:
        if line.resumed:
            self.forget_rate()
        newest = self._copies[-1].last_s if self._copies else -math.inf
        if self.last_s is not None and newest is not None and self.last_s - newest >= RATE_WINDOW_S:
            self._copies.append(self.copy())
        self._time = line.time
        batch_frames = line.frames - self.frames
        self.rate = line.frames_per_s
        if self.last_s is None or self.first_s is None:
            self.first_s = self.last_s = line.time
            self._first_frames = batch_frames
        elif self.rate:
            self.last_s += batch_frames / self.rate
        self.frames = line.frames
        self.batches = line.batch + 1
        self.active_s = self.last_s
        self.waited_s += line.waited_s
        if line.resumed:
            self._first_frames += batch_frames
        if self.started is None or line.resumed:
            self.started = self.last_s, self.waited_s
        self._add_learners(line.learners)
        self.version = line.version
        self.lag = line.lag
        if line.mean_return is not None:
            self._add_mean(line.mean_return, self.num_episodes)
        if line.num_episodes is not None:
            self.num_episodes = line.num_episodes
        self.curve.add(self)
        self.scalars = {**self.scalars, **line.scalars}
        self.taking_part = line.taking_part
        for entry in line.workers:
            if entry.totals is not None:
                self._totals(entry.worker).add(entry.totals)


def earlier_curve(metrics: Path, frames: int) -> Curve:
    """Returns the curve of a run's first `frames`, as far as its `metrics.jsonl` can be read. Blocks for the disk."""
    tail = MetricsTail(metrics, -1)
    with suppress(DamagedFileError):
        tail.update()
    return Curve(point for point in tail.curve if point[1] <= frames)


@dataclass(frozen=True)
class PartRates:
    """One worker over the last `RATE_WINDOW_S`: frames per second, the shares of `TIMES`, and the current lag."""

    worker: int
    frames_per_s: float
    shares: tuple[float, ...]
    lag: int


@dataclass(frozen=True)
class View:
    """The numbers of a run at one moment: a copy of its `Statistics`, and the seconds since its start. `now_per_s`
    (frames per second), `trainer_share` (of the time, in which the trainer waited for nothing) and `evaluation_share`
    (in which it waited for evaluations) cover the last `RATE_WINDOW_S`; None while unknown. `learners` are the shares
    in which each of several learners waited for its workers, and for the others. A curve's zero is `begin_s` after the
    start. See `RateWindow.summary`."""

    numbers: Statistics
    elapsed_s: float
    now_per_s: float | None
    trainer_share: float | None = None
    workers: tuple[PartRates, ...] = ()
    learners: tuple[tuple[float, float], ...] = ()
    begin_s: float = 0.0
    evaluation_share: float = 0.0
    is_summary: bool = False

    @property
    def rate(self) -> float | None:
        """The current frames per second; in a `summary`, those of the whole run."""
        return self.numbers.frames_per_s if self.is_summary else self.now_per_s

    @property
    def share(self) -> float:
        """The delivered frames divided by the expected ones, at most 1; 0 for an endless run."""
        now = self.numbers
        return min(1.0, now.frames / now.expected_frames) if now.expected_frames > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """The remaining seconds at the current rate; None while unknown."""
        rate = self.now_per_s or self.numbers.frames_per_s
        if not rate or self.numbers.expected_frames < 0:
            return None
        return max(0, self.numbers.expected_frames - self.numbers.frames) / rate


class RateWindow:
    """Makes views of `Statistics`; keeps samples of the last seconds for the current rates. Not thread-safe.

    Attributes:
        start_s: when the run started, on the clock of `view`.
    """

    def __init__(self, statistics: Statistics, start_s: float):
        self._statistics = statistics
        self.start_s = start_s
        self._samples: deque[tuple[float, Statistics]] = deque()

    def view(self, now_s: float) -> View:
        """Returns the view at `now_s`, on a monotonic clock."""
        now, age_s = self._statistics.copy(), self._statistics.age_s(now_s)
        samples = self._samples
        if samples and now.frames < samples[-1][1].frames:
            samples.clear()  # a restarted job continues from an earlier checkpoint
        if now.started is not None:
            if not samples and (earlier := self._statistics.earlier()) is not None:
                samples.append((now_s - age_s - earlier[0], earlier[1]))
            # Keeps the first and the last of consecutive samples without new frames.
            if len(samples) > 2 and samples[-2][1].frames == samples[-1][1].frames == now.frames:
                samples.pop()
            samples.append((now_s, now))
        # Keeps a sample with fewer frames: while a batch takes longer than `RATE_WINDOW_S`, the rate falls.
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_WINDOW_S and samples[1][1].frames < now.frames:
            samples.popleft()
        since_s, since = samples[0] if samples else (now_s, now)
        passed_s, frames, rate = now_s - since_s, now.frames - since.frames, now.rate
        if rate is not None and passed_s > 0:
            # All frames came before the first sample: the rate falls with time.
            rate = min(rate, now.frames / passed_s)
        now_per_s = frames / passed_s if frames and passed_s > 0 else rate
        share = _trainer_share(now, since)
        elapsed_s = now_s - self.start_s
        begin_s = 0.0
        if now.first_s is not None and now.last_s is not None:
            begin_s = max(0.0, elapsed_s - age_s - (now.last_s - now.first_s))
        workers = tuple(_part_rates(now, since, now_per_s))
        learners = _learner_shares(now, since, 0.0 if since.last_s is None else (now.last_s or 0.0) - since.last_s)
        evaluation_share = min(1.0, (now.evaluation_s - since.evaluation_s) / passed_s) if passed_s > 0 else 0.0
        share = _learning_share(now, share, evaluation_share, learners)
        return View(now, elapsed_s, now_per_s, share, workers, learners, begin_s, evaluation_share)

    def summary(self, now_s: float, elapsed_s: float | None = None) -> View:
        """Returns the view of a run that has ended, with the speeds and shares of its whole time. `elapsed_s`: how long
        it took; by default, until now."""
        view, nothing = self.view(now_s), Statistics(-1)
        now = view.numbers
        share, passed_s = _trainer_share(now, now), (now.last_s or 0.0) - (now.first_s or 0.0)
        # The trainer also waits after the last delivery.
        evaluation_share = now.evaluation_s / (now.active_s - (now.first_s or 0.0) + now.evaluation_s or 1.0)
        workers = tuple(_part_rates(now, nothing, now.frames_per_s))
        learners = _learner_shares(now, nothing, passed_s)
        share = _learning_share(now, share, evaluation_share, learners)
        elapsed_s = view.elapsed_s if elapsed_s is None else elapsed_s
        return View(now, elapsed_s, None, share, workers, learners, view.begin_s, evaluation_share, is_summary=True)


def _trainer_share(now: Statistics, since: Statistics) -> float | None:
    """Returns the trainer's share of the time between the deliveries of two samples, without waits for evaluations;
    without a delivery in between, its share since this process's first delivery."""
    if now.last_s is None or now.started is None:
        return None
    begin_s, waited_s = now.started
    if since.last_s is not None and since.waited_s >= waited_s and since.last_s < now.last_s:
        begin_s, waited_s = since.active_s, since.waited_s
    passed_s = now.active_s - begin_s
    return min(1.0, max(0.0, 1 - (now.waited_s - waited_s) / passed_s)) if passed_s > 0 else None


def _learning_share(
    now: Statistics, share: float | None, evaluation_share: float, learners: Sequence[tuple[float, float]]
) -> float | None:
    """Returns the share of all the time in which the trainer waited for nothing. `share` leaves waits for evaluations
    out, and counts those for other learners, whose shares are in `learners`."""
    if share is None or len(learners) < len(now.learners):
        return None
    return max(0.0, share * (1 - evaluation_share) - (learners[0][1] if learners else 0.0))


def _learner_shares(now: Statistics, since: Statistics, passed_s: float) -> tuple[tuple[float, float], ...]:
    """Returns the shares of `passed_s`, the seconds between two samples, in which each learner waited for its workers,
    and for the others."""
    if passed_s <= 0:
        return ()
    before = since.learners or [(0.0, 0.0)] * len(now.learners)
    return tuple(
        (min(1.0, (workers - workers_before) / passed_s), min(1.0, (others - others_before) / passed_s))
        for (workers, others), (workers_before, others_before) in zip(now.learners, before, strict=True)
    )


def _part_rates(now: Statistics, since: Statistics, rate: float | None) -> Iterator[PartRates]:
    """Yields each worker's share of `rate`, by its frames between two samples. A worker without frames in between has
    the shares of time since the start; if no worker has, so are the shares of `rate`: `metrics.jsonl` has totals every
    few seconds only."""
    parts = {worker: totals.since(since.workers.get(worker, PartTotals())) for worker, totals in now.workers.items()}
    if not any(part.frames for part in parts.values()):
        parts = now.workers
    frames = max(1, sum(part.frames for part in parts.values()))
    for worker, part in sorted(parts.items()):
        totals = now.workers[worker]
        shares = (part if part.frames else totals).shares()
        yield PartRates(worker, (rate or 0.0) * part.frames / frames, shares, totals.lag)


FEW = 4
"""Fewer values have no interquartile mean, and no confidence interval."""


def bootstrap_interval(values: np.ndarray, centre: Callable[..., Any], num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of the 95% confidence interval of `centre(values)` over axis 0, by the percentile bootstrap."""
    import numpy as np

    draws = np.random.default_rng(0).integers(len(values), size=(num_draws, len(values)))
    low, high = np.quantile([centre(values[draw]) for draw in draws], [0.025, 0.975], axis=0)
    return low, high
