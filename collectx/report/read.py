"""Reads run folders for a report: the curves and times of each run, the groups of runs that differ only in their seeds,
and the interval of each group. Reads `halving.json` of their sweeps.

The statistics are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice":
the interquartile mean over runs, its 95% bootstrap percentile interval, and the probability of improvement.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from collectx.config.schema.run import OF_EVALUATION
from collectx.errors import ConfigError
from collectx.jobs.status import RunStatus, numbers_of, query_slurm, read_job, status_of
from collectx.run import RunFolder, Status
from collectx.run.folder import snapshot
from collectx.run.folder.batch_line import PartTotals
from collectx.run.folder.events import format_event
from collectx.run.folder.layout import runs_below
from collectx.run.folder.result import WITHOUT_FAILURE
from collectx.run.folder.saved_config import flat, read_config
from collectx.run.statistics import FEW, better_return, bootstrap_interval

Curve: TypeAlias = tuple[np.ndarray, np.ndarray]
"""The places and the values of a curve, `[points]` float64 each; places ascend."""

NUM_POINTS = 160
"""The maximum number of points of a curve."""
_NUM_DRAWS = 2000
# Runs of one group may differ in these options, in which a reproduction differs from its run too.
_NO_GROUPS = ("seed", "checkpoint.", "logger.", "eval.", "trainer.digest", "trainer.dir", "collector.order_of")
# The maximum number of differing options in the name of a group.
_MAX_NAMED = 3
# An option in the name of a folder.
_NAMED = re.compile(r"[\w.]+(?==)")
# What separates the end of a folder's name, such as `ppo_seed0`, from the name of its group.
_NUMBERED = re.compile(r"(^|[\W_]+)(seed|s)?[\W_]*$")


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
        evaluations: the results of evaluations over frames, by names such as `mean_return`.
        spans: the times of all workers.
        learners: how long each of several learners waited for its workers, and for the others: [2] s, by rank.
        messages: pairs (seconds since 1970, what the user reads about an event).
    """

    name: str
    run_folder: RunFolder
    status: RunStatus
    numbers: Mapping[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    scalars: dict[str, np.ndarray] = field(default_factory=dict)
    evaluations: dict[str, Curve] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    learners: dict[int, np.ndarray] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    messages: list[tuple[float, str]] = field(default_factory=list)
    _clock: Curve = (np.zeros(1), np.zeros(1))

    @property
    def env(self) -> str:
        """What the run's env is called."""
        names = (self.options.get(f"env.{name}") for name in ("id", "entry_point", "target", "kind"))
        return next((str(name) for name in names if name), "")

    @property
    def end(self) -> str:
        """Why the run ended early, in one line."""
        return f"{self.name}: {self.status.status}: {self.status.detail.partition(chr(10))[0]}".rstrip(": ")

    @property
    def ended_early(self) -> bool:
        """Whether the run failed, was interrupted, or has a damaged file."""
        return self.status.status in (Status.FAILED, Status.INTERRUPTED, Status.DAMAGED)

    def number(self, name: str) -> float | None:
        """Returns an entry of `result.json`; None if the run lacks it."""
        value = (self.numbers or {}).get(name)
        return float(value) if isinstance(value, (int, float)) else None

    def seconds(self, time: float) -> float:
        """Returns the time of an event, given in seconds since 1970."""
        return float(np.interp(time, *self._clock))

    def curve(self, value: str, over: str) -> Curve | None:
        """Returns a column, a scalar (`scalars/<name>`) or the results of evaluations (`eval/<name>`, only over
        frames) over another column, at most `NUM_POINTS` points, each a mean; `frames_per_s` is the rate since the
        point before. None if the run lacks it."""
        if value.startswith(OF_EVALUATION):
            evaluated = self.evaluations.get(value.removeprefix(OF_EVALUATION))
            return None if evaluated is None else _thin(*evaluated)
        columns = self.columns | {f"scalars/{name}": column for name, column in self.scalars.items()}
        places = columns.get(over, np.zeros(0))
        if value == "frames_per_s":
            return _rates(columns, places) if len(places) > 2 and np.ptp(columns["elapsed_s"]) else None
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
                best = better_return(best, float(mean), num_before)
            if np.isfinite(num_episodes):  # unknown of a batch in which no episode ends
                num_before = num_episodes
        return None if np.isnan(best) else best

    def parts_s(self) -> tuple[float | None, ...]:
        """Returns how long starting, waiting for batches, learning, checkpoints and waiting for evaluations took: [s],
        None where this is not known."""
        elapsed_s, waited_s = (self.columns.get(name, np.zeros(0)) for name in ("elapsed_s", "waited_s"))
        numbers = self.numbers or {}
        if not len(elapsed_s):
            return (None,) * 5
        waiting_s, saving_s = float(np.nansum(waited_s[1:])), numbers.get("checkpoint_s")
        passed_s, evaluating_s = float(elapsed_s[-1] - elapsed_s[0]), numbers.get("evaluation_s")
        if evaluating_s is not None:  # the last ones are awaited after the last batch
            passed_s = max(passed_s, numbers["wall_s"] - (numbers.get("start_s") or 0.0))
        learning_s = max(0.0, passed_s - waiting_s - (saving_s or 0.0) - (evaluating_s or 0.0))
        return numbers.get("start_s"), waiting_s, learning_s, saving_s, evaluating_s


def _thin(places: np.ndarray, values: np.ndarray) -> Curve:
    if len(places) <= NUM_POINTS:
        return places, values
    cuts = np.linspace(0, len(places), NUM_POINTS + 1).astype(int)
    counts = np.diff(cuts)
    return np.add.reduceat(places, cuts[:-1]) / counts, np.add.reduceat(values, cuts[:-1]) / counts


def _rates(columns: Mapping[str, np.ndarray], places: np.ndarray) -> Curve:
    """Returns frames per second in windows of equal time, as batches may come in bursts: two batches on average, or a
    fiftieth of the run."""
    elapsed_s = columns["elapsed_s"]
    ends_s = np.linspace(elapsed_s[0], elapsed_s[-1], min(50, len(places) // 2) + 1)
    got, at = (np.interp(ends_s, elapsed_s, column) for column in (columns["frames"], places))
    return at[1:], np.diff(got) / np.diff(ends_s)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seeds.

    Attributes:
        name: the options by which the group differs from the others with its env.
        runs: one run for each seed.
        repeats: further runs of these seeds, such as reproductions. They do not count, as they are no other sample.
    """

    name: str
    runs: tuple[Run, ...]
    repeats: tuple[Run, ...] = ()

    @property
    def env(self) -> str:
        """What the env of the runs is called."""
        return self.runs[0].env

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose results may be averaged: the completed ones, also those that a sweep stopped; if
        `run.max_batches` ended some before others, as `hydra/sweeper=halving` does, those with the most batches."""
        completed = [run for run in self.runs if run.status.status in WITHOUT_FAILURE]
        return tuple(run for run in completed if _limit(run) == max(map(_limit, completed)))

    @property
    def limit(self) -> float:
        """The number of batches after which `run.max_batches` ended the runs that count; infinity without it."""
        return max(map(_limit, self.runs))

    def curves(self, value: str, over: str) -> tuple[list[Curve], list[Curve]]:
        """Returns the curves of the runs that recorded it: of those that did not end early, and of those that did."""
        curves: tuple[list[Curve], list[Curve]] = ([], [])
        for run in self.runs:
            if (curve := run.curve(value, over)) is not None:
                curves[run.ended_early].append(curve)
        return curves

    def kept(self, value: str, over: str) -> list[Curve]:
        """Returns the curves of the runs that did not end early. Those of runs that count keep their last value until
        the last curve ends."""
        curves = {run: curve for run in self.runs if not run.ended_early and (curve := run.curve(value, over))}
        end = max(places[-1] for places, _ in curves.values())
        return [
            (np.append(places, end), np.append(values, values[-1])) if run in self.counted else (places, values)
            for run, (places, values) in curves.items()
        ]

    def values(self, number: str) -> np.ndarray:
        """Returns a number of `result.json`, `[runs]` float64, for the runs that count and have it."""
        return np.array([value for run in self.counted if (value := run.number(number)) is not None], float)


def _limit(run: Run) -> float:
    """Returns the number of batches after which `run.max_batches` ended a run; infinity if it got all of its frames."""
    limit, total = (run.options.get(name) for name in ("run.max_batches", "collector.total_frames"))
    got_all = isinstance(total, int) and 0 <= total <= (run.number("frames") or 0)
    # The configuration may name a variable of the environment instead of a number.
    return float(limit) if isinstance(limit, int) and not got_all else np.inf


def common(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns curves where all of them are: (places `[points]`, values `[curves, points]`). These are the places that
    they share, or places between which they are interpolated. None if they overlap for less than half of the
    shortest one."""
    begin, end = max(curve[0][0] for curve in curves), min(curve[0][-1] for curve in curves)
    places = reduce(np.intersect1d, (curve[0] for curve in curves))
    if 2 * len(places) < min(len(curve[0]) for curve in curves):
        shortest = min(curve[0][-1] - curve[0][0] for curve in curves)
        places = np.linspace(begin, end, NUM_POINTS) if begin < end and 2 * (end - begin) >= shortest else np.zeros(0)
    return (places, np.stack([np.interp(places, *curve) for curve in curves])) if len(places) else None


def centre(values: np.ndarray) -> np.ndarray:
    """Returns the interquartile mean over axis 0: the mean without the lowest and the highest quarter; with fewer than
    four values, the mean of all."""
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


def interval(values: np.ndarray, of: Callable[[np.ndarray], Any] = centre) -> tuple[np.ndarray, np.ndarray]:
    """Returns the 95% bootstrap percentile interval of a statistic over axis 0: its lower and upper end. Of fewer than
    `FEW` values, which allow no interval, the lowest and the highest."""
    if len(values) < FEW:
        return values.min(axis=0), values.max(axis=0)
    return bootstrap_interval(values, of, _NUM_DRAWS)


def improvement(values: np.ndarray, others: np.ndarray) -> float:
    """Returns the probability that a value is higher than one of `others`: the share of pairs, of which ties count
    half."""
    return float(np.sign(np.subtract.outer(values, others)).mean() / 2 + 0.5)


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Returns the runs in or below some folders, each once. Asks SLURM if some are jobs that have not ended. Raises
    `ConfigError` if there is no run in or below one of them."""
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        if not (below := runs_below(folder)):
            reason = f"there is no run in or below '{folder}'" if os.path.isdir(folder) else f"'{folder}' is a file"
            if not os.path.exists(folder):
                reason = f"there is no folder '{folder}'"
            raise ConfigError(f"{reason}. To list your runs: collectx status")
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
            # Evaluations have curves.
            told = (each for each in events if each[0]["event"] != "evaluated")
            run.messages = [(time, text) for _, time, text in told if text is not None]
            run.messages = sorted(run.messages + _interruptions(run.events))
            run.evaluations = _evaluations(run.events)
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


def _evaluations(events: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    # A run that continued from an older checkpoint has repeated some.
    by_frames = {int(each["frames"]): each for each in events if each["event"] == "evaluated"}
    points: dict[str, list[tuple[int, float]]] = {}
    for frames, each in sorted(by_frames.items()):
        for name, value in {"mean_return": each["mean_return"], **each.get("metrics", {})}.items():
            points.setdefault(name, []).append((frames, value))
    return {name: (both[:, 0], both[:, 1]) for name, each in points.items() if len(both := np.array(each, float))}


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
        for rank, waited_s in enumerate(line.learners):
            run.learners[rank] = run.learners.get(rank, 0.0) + np.array(waited_s)
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
    # The last entry is up to a second older than the last batch, or the worker's loss.
    end_s = min((at_s for at_s in lost_s if begin_s is not None and at_s > begin_s), default=run._clock[1][-1])
    if begin_s is not None and begin_s < end_s:
        yield Span(worker, begin_s, end_s, shares)


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Returns the options that differ between the runs, with the value in each; None if a run lacks the option."""
    known = [run.options for run in runs if run.options] or [{}]
    keys = dict.fromkeys(key for options in known for key in options if not key.startswith(("hydra", "run.")))
    differing = [key for key in keys if any(options.get(key) != known[0].get(key) for options in known)]
    return {key: [run.options.get(key) for run in runs] for key in differing}


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Returns the groups of runs that differ only in their seeds, env by env, in the order of their first runs. Of
    several runs with one seed, one counts that did not end early; of several, the one with the most frames, or the
    first."""
    groups = []
    for env in dict.fromkeys(run.env for run in runs):
        of_env = [run for run in runs if run.env == env]
        keys = [key for key in differences(of_env) if not key.startswith(_NO_GROUPS)]
        members: dict[str, list[Run]] = {}
        for run in of_env:
            members.setdefault(repr([run.options.get(key) for key in keys]), []).append(run)
        chosen = [_one_per_seed(each) for each in members.values()]
        for each, some, name in zip(members.values(), chosen, names_of(chosen, keys), strict=True):
            groups.append(Group(name, some, tuple(run for run in each if run not in some)))
    return groups


def _one_per_seed(runs: Sequence[Run]) -> tuple[Run, ...]:
    by_seed: dict[Any, Run] = {}
    for run in sorted(runs, key=lambda run: (run.ended_early, -(run.number("frames") or 0))):
        by_seed.setdefault(run.options.get("seed", run.name), run)
    return tuple(run for run in runs if run in by_seed.values())


def names_of(parts: Sequence[Sequence[Run]], keys: Sequence[str]) -> list[str]:
    """Returns a name for each of several sets of runs, which differ in the options `keys`: these options; of many, what
    the names of the set's folders have in common."""
    if not keys:
        names = ["all" if len(part) > 1 else part[0].name for part in parts]
    elif len(keys) <= _MAX_NAMED:
        named = [[(key, part[0].options[key]) for key in keys if key in part[0].options] for part in parts]
        texts = [[f"{_short(key, keys)}={'null' if value is None else value}" for key, value in each] for each in named]
        names = list(map(", ".join, texts))
    else:
        names = [_shared_name([run.name for run in part]) for part in parts]
    if len({*names}) == len(names) and all(names):
        return names
    return [f"{part[0].name} and {len(part) - 1} more" if len(part) > 1 else part[0].name for part in parts]


def _shared_name(names: Sequence[str]) -> str:
    """Returns the words that the names of several folders share; of `seed=0,collector.num_workers=2` and `seed=1,...`,
    it is `num_workers=2`. Of one folder, its name."""
    if len(names) == 1:
        return names[0]
    levels = [
        [level.split(",") for level in levels] for levels in zip(*(name.split("/") for name in names), strict=False)
    ]
    words = [[word for word in first if all(word in other for other in others)] for first, *others in levels]
    shared = "/".join(",".join(re.sub(r"^[\w.]*\.(\w+=)", r"\1", word) for word in each) for each in words if each)
    begin = "".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, zip(*names, strict=False)))
    return shared or _NUMBERED.sub("", begin)


def _short(key: str, keys: Sequence[str]) -> str:
    """Returns the last word of a key if no other key ends with it; otherwise the key."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def shortener(names: Iterable[str], keys: Iterable[str]) -> Callable[[str], str]:
    """Returns a function that shortens the options in a text to their last words: those in the names of folders, if
    neither these names nor `keys` have another option with the same last word."""
    named = {key for name in names for key in _NAMED.findall(name)}
    known = [*named.union(keys)]
    return lambda text: _NAMED.sub(lambda key: _short(key[0], known) if key[0] in named else key[0], text)


def read_rungs(runs: Sequence[Run]) -> dict[str, tuple[Sequence[str], list[tuple[str, ...]]]]:
    """Returns the tables of `halving.json` (head and rows) in the sweep folders of some runs, by the names of the
    folders. Skips damaged files, as the runs tell all but the rungs."""
    found = {}
    for folder in dict.fromkeys(run.run_folder.path.parent for run in runs):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            content = json.loads((folder / "halving.json").read_text())
            found[folder.name] = content["head"], [tuple(map(str, row)) for row in content["rows"]]
    return found
