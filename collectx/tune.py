"""The search of `collectx tune`: measures points, sets of values of some options, and drops bad ones early.

    space --Optuna's sampler--> point --> a run of `seconds`, in a new process --> frames/s --Optuna's pruner--> dropped
                                  ^------------- in turns with other points -------------'            or measured again

Several points race at a time and are measured in turns, so that another program's load does not hit one point alone. A
point is dropped after 2 measurements if it is not in the faster half of those that were measured twice, and so after 4
(successive halving). At the end the fastest point and the configuration as given are measured again, in turns.

A measurement is `collectx run` in a new process group.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from collectx.config.schema.run import RunConfig, TuneConfig
from collectx.config.schema.trainer import LearningTrainerConfig
from collectx.errors import ConfigError
from collectx.place import place_of
from collectx.run import RunFolder, cores

# Option, or group, -> value.
Values = dict[str, Any]
Measure = Callable[[Values], float]

# The number of points that are measured in turns, and the measurements after which a point has stood the race.
_NUM_RACING, _MOST = 3, 4
# Measurements of both sides at the end.
_FEWEST_TURNS, _MOST_TURNS = 3, 5
# Quantiles of Student's distribution for 95 %, two-sided, by the number of turns.
_STUDENT = {3: 4.303, 4: 3.182, 5: 2.776}
_POLL_S = 0.05
# Overrides of a run that is measured.
_ENDLESS = (
    *("collector.total_frames=-1", "run.max_batches=null", "run.resume=never", "run.overwrite=false", "logger=[]"),
    *("checkpoint.every_batches=null", "checkpoint.every_min=null", "checkpoint.grace_s=0"),
)
# How long a run may take to end before it is killed, and how long two batches may take at least.
_CLOSE_S, _PATIENCE_S = 10.0, 30.0


class Failed(Exception):
    """A run ended, or hung, before it was measured."""


@dataclass
class Point:
    """A point and its evidence.

    Attributes:
        values: of the options that are searched.
        rates: the measured frames/s.
        status: "kept", "dropped", or "failed: ..." with the reason.
    """

    values: Values
    rates: list[float] = field(default_factory=list)
    status: str = "kept"

    @property
    def rate(self) -> float:
        """The mean of the measurements; -inf without one."""
        return fmean(self.rates) if self.rates else -math.inf

    def __str__(self) -> str:
        return " ".join(words(self.values))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        points: all, the configuration as given first.
        best: the fastest.
        gain: how many times as fast `best` is as the configuration as given, by measurements in turns: the mean, and
            the ends of the interval of 95 %. None where they are the same, or `best` failed.
    """

    points: list[Point]
    best: Point
    gain: tuple[float, float, float] | None

    @property
    def chosen(self) -> Point:
        """The fastest point if its gain is beyond the noise, otherwise the configuration as given."""
        return self.best if self.gain is not None and self.gain[1] > 1 else self.points[0]


def words(values: Mapping[str, Any]) -> list[str]:
    """The overrides of a point."""
    return [f"{key}={value}" for key, value in values.items()]


def space(cfg: RunConfig, fixed: Collection[str], exact: bool) -> list[Values]:
    """All points, that of `cfg` first. Rules between options are not checked, except that of frames_per_batch.

    Args:
        fixed: options and groups that keep their value.
        exact: see `TuneConfig`.

    Raises:
        ConfigError: nothing is left to search, or the workers are not processes of this machine.
    """
    place = place_of(cfg)
    if not place.is_local:
        advice = "use launcher=local, within an allocation for a node of a cluster."
        raise ConfigError(f"launcher={cfg.launcher.kind}: tune measures on the machine where it runs: {advice}")
    collector, schedule = cfg.collector, cfg.collector.schedule
    now: Values = {"env.num_envs": cfg.env.num_envs}
    # Numbers of envs that halve or double the configured one.
    choices: dict[str, list[Any]] = {"env.num_envs": [cfg.env.num_envs * 2**power for power in range(4)]}
    choices["env.num_envs"] += [cfg.env.num_envs // 2**power for power in range(1, cfg.env.num_envs.bit_length())]
    usable, is_spread = cores.num_cores(), not place.is_inline
    if schedule != "single":
        now["collector.num_workers"] = collector.num_workers
        doubled = [2**power for power in range(usable.bit_length() + 1) if 2**power <= 2 * usable]
        choices["collector.num_workers"] = [*doubled, usable, max(1, usable - 1)]
    if is_spread:
        now["launcher.num_threads"] = cfg.launcher.num_threads
        choices["launcher.num_threads"] = [threads for threads in (1, 2, 4) if threads <= usable]
    if place.shares_memory and cfg.policy.kind != "random":
        now["inference"], choices["inference"] = cfg.inference.kind, ["local", "server"]
    if schedule == "sync" and is_spread and not exact:
        now["collector.overlap"], choices["collector.overlap"] = collector.overlap, [0, 1]
    if schedule == "async" and not exact:
        now["collector.num_slots"], choices["collector.num_slots"] = collector.num_slots, [1, 2, 4]
    searched = {key: list(dict.fromkeys([now[key], *values])) for key, values in choices.items() if key not in fixed}
    points = [dict(zip(searched, values, strict=True)) for values in itertools.product(*searched.values())]
    rows = _rows(cfg, now)
    fitting = [
        point
        for point in points
        if cfg.collector.frames_per_batch % (count := _rows(cfg, now | point)) == 0 and (count == rows or not exact)
    ]
    varied = [key for key in searched if len({point[key] for point in fitting}) > 1]
    if not varied:
        left = f"nothing is left to search: {', '.join(map(str, fixed)) or 'no option'} is fixed by the command line"
        more = (
            "tune.exact=false also searches numbers of envs, collector.overlap and collector.num_slots."
            if exact
            else ""
        )
        raise ConfigError(f"{left}: {more or 'leave out some overrides.'}")
    return [{key: point[key] for key in varied} for point in fitting]


def _rows(cfg: RunConfig, values: Mapping[str, Any]) -> int:
    """The rows of a batch."""
    parts = values["collector.num_workers"] if cfg.collector.schedule == "sync" else 1
    return parts * values["env.num_envs"]


def changes(cfg: RunConfig, values: Values) -> list[str]:
    """Returns the changes for the trainer with a point, in words."""
    now = {"env.num_envs": cfg.env.num_envs, "collector.num_workers": cfg.collector.num_workers}
    before, after = _rows(cfg, now), _rows(cfg, now | values)
    frames = cfg.collector.frames_per_batch
    texts = []
    if before != after:
        texts.append(f"a batch has {after} rows of {frames // after} steps, not {before} of {frames // before}")
    if values.get("collector.overlap", cfg.collector.overlap) != cfg.collector.overlap:
        texts.append(f"the lag of a batch is {values['collector.overlap']}, not {cfg.collector.overlap}")
    workers, slots = cfg.collector.num_workers, cfg.collector.num_slots
    has_other_workers = values.get("collector.num_workers", workers) != workers
    has_other_slots = values.get("collector.num_slots", slots) != slots
    if cfg.collector.schedule == "async" and (has_other_workers or has_other_slots):
        texts.append("more or fewer batches are on their way, and their lag changes with them")
    return texts


def search(
    points: Sequence[Values],
    is_valid: Callable[[Values], bool],
    measure: Measure,
    options: TuneConfig,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
) -> SearchResult:
    """Races points until the time is over, then measures the fastest one beside the first. Blocks.

    Args:
        points: the configuration as given first.
        is_valid: whether a point may be run; called once for a point.
        measure: returns frames/s. Raises `Failed`.
        say: called with a line for each measurement.

    Raises:
        ConfigError: Optuna is not installed, or the configuration as given cannot be measured.
    """
    race = _Race(points, is_valid, seed)
    began_s = clock()
    # The duration of every measurement, also of those that failed.
    costs_s: list[float] = []

    def measured(point: Point) -> float | None:
        start_s = clock()
        try:
            rate = measure(point.values)
        except Failed as error:
            point.status = f"failed: {error}"
            say(f"{clock() - began_s:5.0f} s  {point}: {point.status}")
            return None
        finally:
            costs_s.append(clock() - start_s)
        say(f"{clock() - began_s:5.0f} s  {point}: {rate:,.0f} frames/s")
        return rate

    def has_time(num_more: int) -> bool:
        return clock() - began_s + num_more * fmean(costs_s) <= 60 * options.minutes

    for point in race:
        rate = measured(point)
        if rate is None and not race.points[0].rates:
            raise ConfigError(f"the configuration as given cannot be measured: {point.status}")
        race.add(point, rate)
        num_left = 1 if race.best is race.points[0] else 1 + 2 * _FEWEST_TURNS
        # The configuration as given and one other are measured in any case.
        if len(costs_s) > 1 and not has_time(num_left):
            break
    given, best = race.points[0], race.best
    ratios: list[float] = []
    while best is not given and (len(ratios) < _FEWEST_TURNS or (len(ratios) < _MOST_TURNS and has_time(2))):
        # The order changes, so that none of the two is always measured first.
        first, second = (given, best) if len(ratios) % 2 == 0 else (best, given)
        if (one := measured(first)) is None or (two := measured(second)) is None:
            return SearchResult(race.points, best, None)
        first.rates.append(one)
        second.rates.append(two)
        ratios.append(math.log(best.rates[-1] / given.rates[-1]))
    if not ratios:
        return SearchResult(race.points, best, None)
    mean, half = fmean(ratios), _STUDENT[len(ratios)] * stdev(ratios) / math.sqrt(len(ratios))
    return SearchResult(race.points, best, (math.exp(mean), math.exp(mean - half), math.exp(mean + half)))


class _Race:
    """Iterates over the points to be measured next; `add` tells the result of the last one."""

    def __init__(self, points: Sequence[Values], is_valid: Callable[[Values], bool], seed: int):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna 2 uses old names of SQLAlchemy
                import optuna
        except ModuleNotFoundError as error:
            raise ConfigError(
                "collectx tune needs Optuna, which is not installed: pip install 'collectx[tune]'."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        self._study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
        )
        self._choices = {key: list(dict.fromkeys(point[key] for point in points)) for key in points[0]}
        self._untried = list(points)
        self._is_valid = is_valid
        self._random = Random(seed)
        self._trials: dict[int, Any] = {}
        self.points: list[Point] = []

    @property
    def best(self) -> Point:
        """The fastest of those that were not dropped, or of all."""
        measured = [point for point in self.points if point.rates and not point.status.startswith("failed")]
        left = [point for point in measured if point.status == "kept"]
        return max(left or measured or self.points, key=lambda point: point.rate)

    def __iter__(self) -> Iterator[Point]:
        racing: list[Point] = []
        while True:
            while len(racing) < _NUM_RACING and (point := self._next()) is not None:
                racing.append(point)
            if not racing:
                return
            yield from racing
            racing = [point for point in racing if point.status == "kept" and len(point.rates) < _MOST]

    def add(self, point: Point, rate: float | None) -> None:
        """Adds a measurement of a point, None if it failed; sets its status."""
        trial = self._trials[id(point)]
        if rate is None:
            self._study.tell(trial, state=self._states.FAIL)
            return
        point.rates.append(rate)
        trial.report(point.rate, step=len(point.rates))
        if trial.should_prune():
            point.status = "dropped"
            self._study.tell(trial, state=self._states.PRUNED)
        elif len(point.rates) == _MOST:
            self._study.tell(trial, point.rate)

    def _next(self) -> Point | None:
        """The next point: the first one, then what the sampler suggests, or a random one where that was tried; None if
        all were tried."""
        while self._untried:
            trial = self._ask(None if self.points else self._untried[0])
            if trial is None:
                trial = self._ask(self._random.choice(self._untried))
            values = trial.params
            self._untried.remove(values)
            if not self.points or self._is_valid(values):
                self.points.append(point := Point(values))
                self._trials[id(point)] = trial
                return point
            self._study.tell(trial, state=self._states.FAIL)
        return None

    def _ask(self, values: Values | None) -> Any:
        """A trial of a point, or what the sampler suggests; None if that was tried."""
        if values is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is called experimental
                self._study.enqueue_trial(values)
        trial = self._study.ask()
        for key, choices in self._choices.items():
            trial.suggest_categorical(key, choices)
        if trial.params in self._untried:
            return trial
        self._study.tell(trial, state=self._states.FAIL)
        return None


class RunMeasure:
    """Measures a point by `collectx run` in a new process.

    Args:
        words: the user's arguments; the overrides that are added replace what would end or disturb a measurement.
        folder: for the run folders, which are left there.
    """

    def __init__(self, cfg: RunConfig, words: Sequence[str], options: TuneConfig, folder: Path):
        self._command = [sys.executable, "-m", "collectx", "run", *words]
        self._options = options
        self._folder = folder
        self._numbers = itertools.count()
        self._start_s = cfg.collector.start_timeout_s
        is_learning = isinstance(cfg.trainer, LearningTrainerConfig)
        self._last = [*_ENDLESS, *(["trainer.target_return=null"] if is_learning else [])]

    def __call__(self, values: Values) -> float:
        """Returns frames/s. Blocks; the processes of the run have ended then. Raises `Failed`."""
        folder = self._folder / str(next(self._numbers))
        output = folder.with_suffix(".txt")
        command = [*self._command, *words(values), *self._last, f"hydra.run.dir={folder}"]
        with open(output, "wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        try:
            self._wait_for(process, RunFolder(folder).metrics.exists, self._start_s, output)
            time.sleep(self._options.warmup_s + self._options.seconds)
            return self._wait_for(
                process, lambda: self._rate(folder), max(_PATIENCE_S, 20 * self._options.seconds), output
            )
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_CLOSE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait_for(
        self, process: subprocess.Popen[bytes], result: Callable[[], Any], timeout_s: float, output: Path
    ) -> Any:
        """The first result that is true; `output` is that of the process."""
        deadline = time.monotonic() + timeout_s
        while True:
            is_over = process.poll() is not None
            if value := result():
                return value
            if is_over:
                said = output.read_text(errors="replace").strip().splitlines()
                raise Failed(said[-1].strip() if said else f"the run ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise Failed(f"no two batches in {timeout_s:g} s: use a higher tune.seconds")
            time.sleep(_POLL_S)

    def _rate(self, folder: Path) -> float | None:
        return window_rate(RunFolder(folder).read_metrics(), self._options.warmup_s, self._options.seconds)


def window_rate(lines: Iterable[Mapping[str, Any]], warmup_s: float, seconds: float) -> float | None:
    """Frames/s from the first line of `metrics.jsonl` that is `warmup_s` after the first one to the last line; None
    if these two are not `seconds` and two batches apart."""
    rows = [(line["time"], line["frames"]) for line in lines]
    measured = [row for row in rows if row[0] >= rows[0][0] + warmup_s]
    if len(measured) < 3 or (passed_s := measured[-1][0] - measured[0][0]) < seconds:
        return None
    return (measured[-1][1] - measured[0][1]) / passed_s
