"""The search of `collectx tune`: measures points, each a set of values for some options, and keeps the faster half,
until one is left (successive halving).

    grid -- as many points as time allows --> all are measured in rotation --> the faster half --> measured again ...
         --> the fastest point and the user's settings, in turns

The points of a round are measured in rotation, so that the load of another program does not hit a single point. A
measurement is `collectx run` in a new process group.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from collectx.config.problem import counted
from collectx.config.schema.run import RunConfig, TuneConfig
from collectx.config.schema.trainer import LearningTrainerConfig
from collectx.errors import ConfigError
from collectx.fork_server.descendants import end_with_parent
from collectx.place import place_of
from collectx.run import RunFolder, cores
from collectx.run.folder.batch_line import BatchLine

# Values by the options, or groups, that they are for.
Values = dict[str, Any]

# The maximum number of measurements of a point in one round.
_MAX_REPEATS = 2
# How often both sides are measured at the end.
_MIN_TURNS, _MAX_TURNS = 3, 5
# The two-sided 95% quantiles of Student's t distribution, by the number of turns.
_STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}
_POLL_S = 0.05
# Overrides of a measured run.
_ENDLESS = (
    *(
        "collector.total_frames=-1",
        "run.max_batches=null",
        "run.max_minutes=null",
        "run.resume=never",
        "run.overwrite=false",
        "logger=[]",
    ),
    *("checkpoint.every_batches=null", "checkpoint.every_min=null", "checkpoint.grace_s=0"),
)
# How many seconds a run may take to end before it is killed; and how many two batches may take in any case.
_CLOSE_S, _PATIENCE_S = 10.0, 30.0


class Failed(Exception):
    """A run ended or hung before it was measured."""


@dataclass
class Point:
    """A point of the search space, and its measurements. `status` is "kept", "dropped", "refused" by a rule between
    options, or "failed: ..." with the reason."""

    values: Values
    rates: list[float] = field(default_factory=list)
    status: str = "kept"

    @property
    def failed(self) -> bool:
        return self.status.startswith("failed")

    def __str__(self) -> str:
        return " ".join(words(self.values))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        points: the points that were tried, the user's settings first.
        best: the fastest point.
        gain: how many times as fast `best` is as the user's settings, measured in turns: (mean, lower end, upper end of
            the 95% confidence interval). None if they are the same point, or one of them failed: its `status` says so.
        num_refused: how many other points a rule between options refused.
    """

    points: list[Point]
    best: Point
    gain: tuple[float, float, float] | None
    num_refused: int = 0

    @property
    def chosen(self) -> Point:
        """The fastest point if its gain is beyond the noise, or the user's settings failed; otherwise these."""
        yours = self.points[0]
        is_better = self.gain[1] > 1 if self.gain is not None else yours.failed and not self.best.failed
        return self.best if is_better else yours


def words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def space(cfg: RunConfig, fixed: Collection[str], exact: bool) -> list[Values]:
    """Returns all points, the one of `cfg` first. Of the rules between options, only the one about frames_per_batch is
    checked. Raises `ConfigError` if nothing is left to search, or the workers are not processes of this machine.
    `fixed` are options and groups that keep their value."""
    place = place_of(cfg)
    if not place.is_here:
        advice = "Use launcher=local. To measure a cluster node, run tune on that node, inside an allocation."
        raise ConfigError(
            f"tune cannot use launcher={cfg.launcher.kind}, because it measures on the machine where it runs. {advice}"
        )
    collector, envs = cfg.collector, cfg.env.num_envs
    usable, is_spread = cores.num_cores(), not place.is_inline
    powers = [2**power for power in range(16)]
    # The configured value first.
    grid: dict[str, list[Any]] = {
        "env.num_envs": [*(envs * each for each in powers[:4]), *(envs // each for each in powers if each <= envs)]
    }
    if collector.has_workers:
        doubled = (each for each in powers if each <= 2 * usable)
        grid["collector.num_workers"] = [collector.num_workers, *doubled, usable, max(1, usable - 1)]
    if is_spread:
        grid["launcher.num_threads"] = [cfg.launcher.num_threads, *(each for each in (1, 2, 4) if each <= usable)]
    if place.shares_memory and not cfg.policy.is_random:
        grid["inference"] = [cfg.inference.kind, "local", "server"]
    if collector.schedule == "sync" and is_spread and not exact:
        grid["collector.overlap"] = [collector.overlap, 0, 1]
    if collector.schedule == "async" and not exact:
        grid["collector.num_slots"] = [collector.num_slots, 1, 2, 4]
    grid = {key: list(dict.fromkeys(values)) for key, values in grid.items() if key not in fixed}
    first, *others = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))

    def fits(point: Values) -> bool:
        rows, threads = _rows(cfg, point), point.get("launcher.num_threads", 1)
        has_rows = rows == _rows(cfg, {}) if exact else collector.frames_per_batch % rows == 0
        # Several threads per worker only help while there are cores for them.
        num_workers = point.get("collector.num_workers", collector.num_workers)
        return has_rows and (threads == 1 or threads * num_workers <= 2 * usable)

    points = [first, *filter(fits, others)]
    varied = [key for key in grid if len({point[key] for point in points}) > 1]
    if not varied:
        rule = f"nothing is left to search: the command line fixes {', '.join(map(str, fixed))}"
        if not fixed:
            rule = f"nothing is left to search: collector={collector.kind} leaves nothing to vary"
        if exact:
            rule += ", and tune.exact=true excludes the rest" if fixed else " with tune.exact=true"
        more = "Use tune.exact=false to also search env.num_envs, collector.overlap and collector.num_slots."
        raise ConfigError(f"{rule}. {more if exact else 'Leave out some overrides.'}")
    return [{key: point[key] for key in varied} for point in points]


def _rows(cfg: RunConfig, values: Mapping[str, Any]) -> int:
    workers = values.get("collector.num_workers", cfg.collector.num_workers)
    return (workers if cfg.collector.schedule == "sync" else 1) * values.get("env.num_envs", cfg.env.num_envs)


def changes(cfg: RunConfig, values: Values) -> list[str]:
    """Returns what a point changes for the trainer, a clause for each change."""
    before, after, frames = _rows(cfg, {}), _rows(cfg, values), cfg.collector.frames_per_batch
    names = ("num_workers", "num_slots", "overlap")
    changed = {name for name in names if values.get(f"collector.{name}", now := getattr(cfg.collector, name)) != now}
    texts = []
    if before != after:
        texts.append(
            f"a batch has {counted(after, 'row')} of {frames // after} steps, instead of {before} of {frames // before}"
        )
    if "overlap" in changed:
        texts.append(f"the lag of a batch is {values['collector.overlap']}, instead of {cfg.collector.overlap}")
    if cfg.collector.schedule == "async" and changed & {"num_workers", "num_slots"}:
        texts.append("more or fewer batches are in flight, which changes their lag")
    return texts


def search(
    points: Sequence[Values],
    is_valid: Callable[[Values], bool],
    measure: Callable[[Values], float],
    options: TuneConfig,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
) -> SearchResult:
    """Halves the points until one is left, then measures it beside the user's settings. Blocks for about
    `options.minutes`.

    A round takes half of the remaining time, so each round has time for half as many points as the one before. If the
    grid is too large for the first round, this round tries as many points as time allows, in random order. Raises
    `ConfigError` if the user's settings cannot be measured.

    Args:
        points: all points, the user's settings first.
        is_valid: whether a point may be run; called once per point.
        measure: returns frames/s. Raises `Failed`.
    """
    began_s = clock()
    # The durations of all measurements, including failed ones.
    costs_s: list[float] = []

    def left_s(num_more: int) -> float:
        """Returns the time that remains after `num_more` further measurements."""
        return 60 * options.minutes - (clock() - began_s) - num_more * fmean(costs_s)

    def measured(point: Point) -> bool:
        start_s = clock()
        try:
            point.rates.append(measure(point.values))
            text = f"{point.rates[-1]:,.0f} frames/s"
        except Failed as error:
            text = point.status = f"failed: {error}"
        costs_s.append(clock() - start_s)
        say(f"{clock() - began_s:5.0f} s  {point}: {text}")
        return point.status == "kept"

    yours, *others = map(Point, points)
    if not measured(yours):
        raise ConfigError(f"your settings cannot be measured: {yours.status.removeprefix('failed: ')}")
    Random(seed).shuffle(others)
    racing = [*others, yours]
    while len(racing) > 1:
        until_s = left_s(2 * _MIN_TURNS) / 2
        for point in (point for _ in range(_MAX_REPEATS) for point in racing if point.status == "kept"):
            # In any case, one other point than the user's settings is measured.
            if len(costs_s) > 1 and left_s(2 * _MIN_TURNS) < until_s:
                break
            if point.rates or is_valid(point.values):
                measured(point)
            else:
                point.status = "refused"
        ranked = sorted((point for point in racing if point.rates and point.status == "kept"), key=_rate, reverse=True)
        racing = ranked[: (len(ranked) + 1) // 2]
        for point in ranked[len(racing) :]:
            point.status = "dropped"
        # No final comparison is needed yet, so its time serves the others.
        rest = [point for point in others if not point.rates and point.status == "kept"]
        if racing == [yours] and rest and left_s(2 * _MIN_TURNS) > 0:
            racing = [*rest, yours]
    best = racing[0] if racing else yours
    if not yours.failed:
        yours.status = "kept"
    tried = [yours, *(point for point in others if point.rates or point.failed)]
    num_refused = sum(point.status == "refused" for point in others)
    ratios: list[float] = []
    while (
        best is not yours
        and not yours.failed
        and (len(ratios) < _MIN_TURNS or (len(ratios) < _MAX_TURNS and left_s(2) > 0))
    ):
        # The order alternates, so that neither is always measured first.
        if not all(map(measured, (yours, best) if len(ratios) % 2 == 0 else (best, yours))):
            return SearchResult(tried, best, None, num_refused)
        ratios.append(math.log(best.rates[-1] / yours.rates[-1]))
    if not ratios:
        return SearchResult(tried, best, None, num_refused)
    mean, half = fmean(ratios), _STUDENT[len(ratios)] * stdev(ratios) / math.sqrt(len(ratios))
    return SearchResult(tried, best, (math.exp(mean), math.exp(mean - half), math.exp(mean + half)), num_refused)


def _rate(point: Point) -> float:
    return fmean(point.rates)


class RunMeasure:
    """Measures a point by `collectx run` in a new process. `limit_s` is how many seconds a measurement waits for two
    batches.

    Args:
        words: the user's arguments; overrides are added for options that would end or disturb a measurement.
        folder: the folder for the run folders, which are not removed.
    """

    def __init__(self, cfg: RunConfig, words: Sequence[str], options: TuneConfig, folder: Path):
        self._command = [sys.executable, "-m", "collectx", "run", *words]
        self._options = options
        self._folder = folder
        self._numbers = itertools.count()
        self.limit_s = cfg.collector.start_timeout_s + options.warmup_s + max(_PATIENCE_S, 20 * options.seconds)
        is_learning = isinstance(cfg.trainer, LearningTrainerConfig)
        self._last = [*_ENDLESS, *(["trainer.target_return=null"] if is_learning else [])]

    def __call__(self, values: Values) -> float:
        """Returns frames/s. Blocks until the processes of the run have ended. Raises `Failed`."""
        folder = self._folder / str(next(self._numbers))
        output = folder.with_suffix(".txt")
        command = [*self._command, *words(values), *self._last, f"hydra.run.dir={folder}"]
        with open(output, "wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )
        try:
            if (rate := self._wait(process, RunFolder(folder))) is not None:
                return rate
            said = output.read_text(errors="replace").strip().splitlines()
            raise Failed(said[-1].strip() if said else f"the run ended with status {process.returncode}")
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_CLOSE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes], run: RunFolder) -> float | None:
        """Returns frames/s; None if the process ended before they could be measured."""
        warmup_s, seconds = self._options.warmup_s, self._options.seconds
        deadline = time.monotonic() + self.limit_s
        # Reading the metrics takes time from the run, so they are read only from this time on.
        ready = math.inf
        while (now := time.monotonic()) < deadline:
            is_over = process.poll() is not None
            if ready == math.inf and run.metrics.exists():
                ready = now + warmup_s + seconds
            if now >= ready and (rate := window_rate(run.read_metrics(), warmup_s, seconds)):
                return rate
            if is_over:
                return None
            time.sleep(_POLL_S)
        raise Failed(
            f"fewer than two batches in {self.limit_s:g} s. Raise tune.seconds, or lower collector.frames_per_batch."
        )


def window_rate(lines: Iterable[BatchLine], warmup_s: float, seconds: float) -> float | None:
    """Returns frames/s between the last line of `metrics.jsonl` and the first one at least `warmup_s` after the first
    batch; None while these are not `seconds` and two batches apart."""
    rows = [(line.time, line.frames) for line in lines]
    measured = [row for row in rows if row[0] >= rows[0][0] + warmup_s]
    if len(measured) < 3 or (passed_s := measured[-1][0] - measured[0][0]) < seconds:
        return None
    return (measured[-1][1] - measured[0][1]) / passed_s
