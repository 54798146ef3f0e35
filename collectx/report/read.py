"""Reads run folders for a report: the curves and times of each run, the groups of runs that differ only in their seeds,
and the interval of each group.

The interval is that of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": the
interquartile mean over runs and its 95 % bootstrap percentile interval.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from collectx.config.schema.run import OBJECTIVES
from collectx.errors import ConfigError, DamagedFileError
from collectx.jobs.status import RunStatus, numbers_of, query_slurm, read_job, status_of
from collectx.run import RunFolder, Status
from collectx.run.folder import snapshot
from collectx.run.folder.batch_line import PartTotals
from collectx.run.folder.events import format_event
from collectx.run.folder.layout import runs_below
from collectx.run.folder.saved_config import flat, read_config
from collectx.run.statistics import better_return, bootstrap_interval

Curve: TypeAlias = tuple[np.ndarray, np.ndarray]
"""The places and the values of a curve, `[points]` float64 each; places ascend."""

NUM_POINTS = 160
"""The maximum number of points of a curve."""
_NUM_DRAWS = 2000
# Runs of one group may differ in these options, in which a reproduction differs from its run too.
_NO_GROUPS = ("seed", "checkpoint.", "logger.", "eval.", "trainer.digest", "trainer.dir", "collector.order_of")
# Runs that ended early.
_EARLY = (Status.FAILED, Status.INTERRUPTED)
# The maximum number of differing options in the name of a group.
_MAX_NAMED = 3


@dataclass(frozen=True)
class Span:
    """A worker's time from `begin_s` to `end_s`, and the share of each of `TIMES` in it."""

    worker: int
    begin_s: float
    end_s: float
    shares: tuple[float, ...]


@dataclass(eq=False)
class Run:
    """One run. Times are seconds since its workers were started, without the pauses before resumes.

    Attributes:
        name: the run folder, relative to the folder that contains all runs.
        status: see `RunStatus`; DAMAGED, with the reason, if a file cannot be read.
        numbers: the numbers of the run, named as in `result.json`; None before the first batch.
        options: the configuration, by paths such as `collector.num_workers`.
        columns: the values in `metrics.jsonl` by name, `[batches]` float64 each; nan if a batch lacks the value.
        scalars: the values that the trainer logged, in the same form.
        spans: the times of all workers.
        messages: pairs (seconds since 1970, what the user reads about an event).
    """

    name: str
    run_folder: RunFolder
    status: RunStatus
    numbers: Mapping[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    scalars: dict[str, np.ndarray] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    messages: list[tuple[float, str]] = field(default_factory=list)
    _clock: Curve = (np.zeros(1), np.zeros(1))

    @property
    def env(self) -> str:
        """What the run's env is called."""
        names = (self.options.get(f"env.{name}") for name in ("id", "entry_point", "target", "kind"))
        return next((str(name) for name in names if name), "")

    def seconds(self, time: float) -> float:
        """Returns the time of an event, given in seconds since 1970."""
        return float(np.interp(time, *self._clock))

    def curve(self, value: str, over: str) -> Curve | None:
        """Returns a column or a scalar (`scalars/<name>`) over another column, at most `NUM_POINTS` points, each a
        mean; `frames_per_s` is the rate between two points. None if the run lacks it."""
        columns = self.columns | {f"scalars/{name}": column for name, column in self.scalars.items()}
        places = columns.get(over, np.zeros(0))
        if value == "frames_per_s":
            return _rates(columns, places) if len(places) > 2 else None
        if value not in columns:
            return None
        is_known = np.isfinite(columns[value])
        return _thin(places[is_known], columns[value][is_known]) if is_known.any() else None

    def best_return(self) -> float | None:
        """Returns the highest mean return of `RETURN_WINDOW` episodes; of fewer, the newest mean; None before the
        first."""
        best, num_before = np.nan, 0.0
        columns = (self.columns.get(name, ()) for name in ("mean_return", "num_episodes"))
        for mean, num_episodes in zip(*columns, strict=True):
            if np.isfinite(mean):
                best, num_before = better_return(best, float(mean), num_before), num_episodes
        return None if np.isnan(best) else best

    def parts_s(self) -> tuple[float | None, ...]:
        """Returns how long starting, waiting, learning and checkpoints took: [s], None where this is not known."""
        elapsed_s, waited_s = (self.columns.get(name, np.zeros(0)) for name in ("elapsed_s", "waited_s"))
        numbers = self.numbers or {}
        if not len(elapsed_s):
            return (None,) * 4
        waiting_s, saving_s = float(np.nansum(waited_s[1:])), numbers.get("checkpoint_s")
        learning_s = max(0.0, float(elapsed_s[-1] - elapsed_s[0]) - waiting_s - (saving_s or 0.0))
        return numbers.get("start_s"), waiting_s, learning_s, saving_s


def _thin(places: np.ndarray, values: np.ndarray) -> Curve:
    if len(places) <= NUM_POINTS:
        return places, values
    cuts = np.linspace(0, len(places), NUM_POINTS + 1).astype(int)
    counts = np.diff(cuts)
    return np.add.reduceat(places, cuts[:-1]) / counts, np.add.reduceat(values, cuts[:-1]) / counts


def _rates(columns: Mapping[str, np.ndarray], places: np.ndarray) -> Curve:
    """Returns frames per second, each over at least a fiftieth of the batches."""
    cuts = np.unique(np.linspace(0, len(places) - 1, min(len(places), 50)).astype(int))
    passed_s = np.diff(columns["elapsed_s"][cuts])
    rates = np.diff(columns["frames"][cuts]) / np.where(passed_s > 0, passed_s, np.nan)
    return places[cuts[1:]], rates


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seeds.

    Attributes:
        name: the options by which the group differs from the others.
        runs: one run for each seed.
        repeats: further runs of these seeds, such as reproductions. They do not count, as they are no other sample.
    """

    name: str
    runs: tuple[Run, ...]
    repeats: tuple[Run, ...] = ()

    def curves(self, value: str, over: str) -> list[Curve]:
        """Returns one curve for each run that recorded it."""
        return [curve for run in self.runs if (curve := run.curve(value, over)) is not None]

    def values(self, number: str) -> np.ndarray:
        """Returns a number of `result.json`, `[runs]` float64, for the runs that have it and did not end early."""
        numbers = ((run.numbers or {}).get(number) for run in self.runs if run.status.status not in _EARLY)
        return np.array([value for value in numbers if isinstance(value, (int, float))], float)


def common(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns curves at common places: (places `[points]`, values `[curves, points]`); None if the curves do not
    overlap."""
    begin, end = max(curve[0][0] for curve in curves), min(curve[0][-1] for curve in curves)
    if not begin < end:
        return None
    places = np.linspace(begin, end, NUM_POINTS)
    return places, np.stack([np.interp(places, *curve) for curve in curves])


def centre(values: np.ndarray) -> np.ndarray:
    """Returns the interquartile mean over axis 0: the mean without the lowest and the highest quarter; with fewer than
    four values, the mean of all."""
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the 95 % bootstrap percentile interval of `centre`: its lower and upper end."""
    return bootstrap_interval(values, centre, _NUM_DRAWS)


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Returns the runs in or below some folders, each once. Asks SLURM if some are jobs that have not ended. Raises
    `ConfigError` if there is no run in or below one of them."""
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        if not (below := runs_below(folder)):
            reason = f"there is no run in or below '{folder}'" if os.path.isdir(folder) else f"'{folder}' is a file"
            if not os.path.exists(folder):
                reason = f"there is no folder '{folder}'"
            raise ConfigError(f"report: {reason}. To list your runs: collectx status")
        found |= {run_folder.path: run_folder for run_folder in below}
    root = next(root for root in next(iter(found)).parents if all(root in path.parents for path in found))
    jobs = [read_job(run_folder) for run_folder in found.values()]
    states = query_slurm(job for job in jobs if job is not None)
    runs = []
    for run_folder, job in zip(found.values(), jobs, strict=True):
        run = Run(str(run_folder.path.relative_to(root)), run_folder, RunStatus(Status.UNKNOWN))
        try:
            snapshot.check_format(run_folder)
            run.status = status_of(run_folder, job, states)
            run.options = flat(read_config(run_folder.newest_config))
            events = [
                (each, float(each["time"]), format_event(each["event"], each)) for each in run_folder.read_events()
            ]
            run.events = [each for each, _, _ in events]
            run.messages = [(time, text) for _, time, text in events if text is not None]
            run.messages = sorted(run.messages + _interruptions(run.events))
            _read_metrics(run)
            run.numbers = numbers_of(run_folder)
        except ConfigError as error:  # also a damaged file
            run.status = RunStatus(Status.DAMAGED, str(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            run.status = RunStatus(
                Status.DAMAGED, f"{run_folder.path}: a file in this folder does not belong to a run: {error!r}"
            )
        runs.append(run)
    return runs


def _interruptions(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """Returns time and reason of what interrupted a run before it was resumed; its result has the reason of its last
    end."""
    resumed = [index for index, event in enumerate(events) if event["event"] == "resumed"]
    before = events[: resumed[-1]] if resumed else []
    return [(float(each["time"]), str(each["reason"])) for each in before if each["event"] == "interrupted"]


# The columns that a report draws.
_COLUMNS = ("time", "frames", "waited_s", "version", "lag", "batch_return", "mean_return", "num_episodes")


def _read_metrics(run: Run) -> None:
    columns: dict[str, list[Any]] = {name: [] for name in ("elapsed_s", *_COLUMNS)}
    scalars: dict[str, list[float]] = {}
    starts = [event["time"] for event in run.events if event["event"] == "workers_started"]
    known: list[float] = []  # times since 1970
    passed: list[float] = []  # and what has passed by then
    entries: dict[int, list[tuple[float, PartTotals]]] = {}  # of each worker, with their times
    for index, line in enumerate(run.run_folder.read_metrics()):
        if not known or line.resumed:
            begin = max((start for start in starts if start <= line.time), default=line.time)
            known.append(max([*known[-1:], begin]))
            passed.append(passed[-1] if passed else 0.0)
        known.append(max(known[-1], line.time))
        passed.append(passed[-1] + known[-1] - known[-2])
        for name in _COLUMNS:
            columns[name].append(getattr(line, name))
        columns["elapsed_s"].append(passed[-1])
        for name, value in line.scalars.items():
            column = scalars.setdefault(name, [])
            column += [np.nan] * (index - len(column)) + [value]
        for entry in line.workers:
            if entry.totals is not None:
                entries.setdefault(entry.worker, []).append((passed[-1], entry.totals))
    if known:
        run._clock = np.array(known), np.array(passed)
    elif starts:
        run._clock = starts[0] + np.array([0.0, 1e9]), np.array([0.0, 1e9])
    run.spans = [span for worker, each in entries.items() for span in _spans(run, worker, each)]
    run.columns = {name: np.array(column, float) for name, column in columns.items()}
    count = len(columns["time"])
    run.scalars = {name: np.array(column + [np.nan] * (count - len(column))) for name, column in scalars.items()}


def _spans(run: Run, worker: int, entries: Iterable[tuple[float, PartTotals]]) -> Iterator[Span]:
    """Yields the time of a worker between its entries. A restart leaves a gap as long as the time that was not
    measured."""
    kinds = "worker_failed", "workers_started"
    lost_s = [
        run.seconds(each["time"])
        for each in run.events
        if each["event"] in kinds and each.get("worker", worker) == worker
    ]
    begin_s: float | None = None
    for end_s, totals in entries:
        measured_s, shares = sum(totals.spent_s), totals.shares()
        begin_s = max(0.0, end_s - measured_s) if begin_s is None else begin_s
        for at_s in lost_s:
            if begin_s < at_s < end_s:
                yield Span(worker, begin_s, at_s, shares)
                begin_s = min(end_s, at_s + max(0.0, end_s - begin_s - measured_s))
        yield Span(worker, begin_s, end_s, shares)
        begin_s = end_s


def objective_of(run: Run) -> str:
    """Returns the first `sweep.objective` of a run, which Hydra saved; the default if it cannot be read."""
    try:
        name = read_config(run.run_folder.hydra / "config.yaml")["sweep"]["objective"]
        return str(name[0] if isinstance(name, list) else name)
    except (DamagedFileError, KeyError, TypeError):
        return OBJECTIVES[0]


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Returns the options that differ between the runs, with the value in each; None if a run lacks the option."""
    known = [run.options for run in runs if run.options] or [{}]
    keys = dict.fromkeys(key for options in known for key in options if not key.startswith(("hydra", "run.")))
    differing = [key for key in keys if any(options.get(key) != known[0].get(key) for options in known)]
    return {key: [run.options.get(key) for run in runs] for key in differing}


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Returns the groups of runs that differ only in their seeds, in the order of their first runs. Of several runs
    with one seed, one counts that did not end early; of several, the one with the most frames, or the first."""
    keys = [key for key in differences(runs) if not key.startswith(_NO_GROUPS)]
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(repr([run.options.get(key) for key in keys]), []).append(run)
    groups = []
    for each in members.values():
        by_seed: dict[Any, Run] = {}
        for run in sorted(each, key=lambda run: (run.status.status in _EARLY, -(run.numbers or {}).get("frames", 0))):
            by_seed.setdefault(run.options.get("seed", run.name), run)
        chosen = tuple(run for run in each if run in by_seed.values())
        name = name_of(each[0], keys, is_several=len(chosen) > 1) or ("all" if len(each) > 1 else each[0].name)
        groups.append(Group(name, chosen, tuple(run for run in each if run not in chosen)))
    names = [group.name for group in groups]
    return [replace(group, name=group.runs[0].name) if names.count(group.name) > 1 else group for group in groups]


def name_of(run: Run, keys: Sequence[str], is_several: bool = False, without: Sequence[str] = ()) -> str:
    """Returns the options `keys` of a run; of many, the name of its folder. `is_several`: it stands for runs of several
    seeds, so that it names none; nor are options `without` named."""
    if len(keys) <= _MAX_NAMED:
        return ", ".join(f"{_short(key, keys)}={run.options.get(key)}" for key in keys)
    left_out = {*without, *(["seed"] if is_several else [])}
    if not left_out:
        return run.name
    parent, _, point = run.name.rpartition("/")
    words = [word for word in point.split(",") if word.partition("=")[0] not in left_out]
    # `collector.num_workers=2` becomes `num_workers=2`.
    return "/".join(filter(None, (parent, ",".join(re.sub(r"^[\w.]*\.(\w+=)", r"\1", word) for word in words))))


def _short(key: str, keys: Sequence[str]) -> str:
    """Returns the last word of a key if no other key ends with it; otherwise the key."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key
