"""`hydra/sweeper=halving`: runs all points of a sweep to the first rung, and only the best of them on to the next one
(successive halving: Jamieson & Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization").

    <sweep>/halving.json                 the value of each point at each rung that it has reached
    <sweep>/optimization_results.yaml    the best at the last rung, as Optuna's sweeper writes it
    <point>/result.json                  `exit_reason` and `rung` say where the point was ranked, and whether it goes on

A rung ends a point by `run.max_batches`, with a checkpoint, from which the next rung resumes it. So the batches of a
point are those of a run without rungs, and a point that was stopped can go on in a later sweep, or alone.

Points that differ only in `seed` are one candidate: they are ranked by their mean, and go on or stop together.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from collectx.cli import sweep
from collectx.cli.compose import Composed, as_written, parsed
from collectx.cli.overrides import key_of, quoted
from collectx.cli.task import PointFailed, objective, objectives
from collectx.config.check import check_section
from collectx.config.problem import counted
from collectx.config.schema.fields import Unset
from collectx.config.schema.run import RunConfig, SweepConfig
from collectx.errors import ConfigError, text_of
from collectx.jobs.status import statuses
from collectx.run import RunFolder, Status
from collectx.run.folder.files import write_json
from collectx.run.folder.result import ALL_DELIVERED
from collectx.run.folder.saved_config import config_text
from collectx.run.terminal import printing

# How many times as many points as wanted are drawn at most: lists of values may have fewer combinations.
_TRIES = 100


def rungs_of(master: DictConfig, overrides: Sequence[Override]) -> sweep.Rungs:
    """See `collectx.cli.sweep.prepare`."""
    try:
        options = options_of(master)
        draws, _ = options.draws, options.seed
    except Unset:  # a wrong option of the sweep, which the check of the first point tells
        return sweep.Rungs([sweep.sample(overrides)], lambda cfg: [], lambda cfg: [])
    if draws is None and (continuous := [each for each in overrides if not each.is_discrete_sweep()]):
        texts = " ".join(str(each.input_line).lstrip("+") for each in continuous if each.is_sweep_override())
        if texts:
            raise ConfigError(f"{texts} is an interval. Say how many points to draw from it, as in sweep.draws=64.")
    points = points_of(overrides, options)
    return sweep.Rungs(points, partial(problems_of, options=options), partial(notes_of, master, points, options))


def options_of(master: DictConfig) -> SweepConfig:
    values: Any = OmegaConf.to_container(master.sweep)
    return check_section("sweep", values)


def points_of(overrides: Sequence[Override], options: SweepConfig) -> list[list[str]]:
    """Returns the overrides of every point: all combinations, or `sweep.draws` random ones, each with all seeds."""
    if options.draws is None:
        return sweep.product(overrides)
    draw = random.Random(options.seed)
    last = {each.get_key_element(): each for each in overrides}
    seeds = [each for each in last.values() if key_of(each.get_key_element()) == "seed" and each.is_discrete_sweep()]
    others = [each for each in last.values() if each not in seeds]
    drawn: dict[tuple[str, ...], None] = {}
    for _ in range(_TRIES * options.draws):
        drawn[tuple(f"{each.get_key_element()}={_drawn(each, draw)}" for each in others)] = None
        if len(drawn) == options.draws:
            break
    return [[*words, *seed] for words in drawn for seed in sweep.product(seeds)]


def _drawn(override: Override, draw: random.Random) -> str:
    value = override.value()
    if not isinstance(value, IntervalSweep):
        return draw.choice([*sweep.texts(override)])
    assert value.start is not None
    assert value.end is not None
    low, high = value.start, value.end
    is_log = "log" in value.tags
    # With `int(interval(1, 4))`, both are whole numbers, and each number is as likely as the others.
    is_whole = isinstance(low, int) and isinstance(high, int)
    high += is_whole
    number = math.exp(draw.uniform(math.log(low), math.log(high))) if is_log else draw.uniform(low, high)
    return str(min(int(number), high - 1)) if is_whole else f"{number:.6g}"


def problems_of(cfg: RunConfig, options: SweepConfig) -> list[str]:
    """Returns why a point with this configuration cannot be swept over rungs."""
    texts, rungs, total = [], options.rungs, cfg.collector.total_frames
    if not rungs:
        texts.append(
            "sweep.rungs is missing. Name the numbers of frames after which points are compared, as in "
            "sweep.rungs=[100_000,300_000,900_000]."
        )
    elif list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
        texts.append(f"sweep.rungs={list(rungs)} must be positive and ascending.")
    elif 0 <= total < rungs[-1]:
        texts.append(
            f"sweep.rungs ends at {rungs[-1]:,} frames, but collector.total_frames={total} ends each point before. Use "
            f"collector.total_frames={rungs[-1]}."
        )
    elif len({math.ceil(rung / cfg.collector.frames_per_batch) for rung in rungs}) < len(rungs):
        texts.append(
            f"sweep.rungs={list(rungs)} has rungs within one batch of {cfg.collector.frames_per_batch:,} frames "
            "(collector.frames_per_batch). Name rungs that are further apart."
        )
    for name, why in (("max_batches", "which sets it"), ("max_minutes", "which compares points after equal frames")):
        if getattr(cfg.run, name) is not None:
            texts.append(f"run.{name} cannot be used with hydra/sweeper=halving, {why}. Leave it out.")
    if cfg.run.overwrite or cfg.run.resume == "never":
        which = "run.overwrite=true" if cfg.run.overwrite else "run.resume=never"
        texts.append(
            f"{which} cannot be used with hydra/sweeper=halving, whose rungs resume the points. Leave it out. To start "
            "over, choose another hydra.sweep.dir."
        )
    return texts


def notes_of(master: DictConfig, points: Sequence[Sequence[str]], options: SweepConfig, cfg: RunConfig) -> list[str]:
    """Returns what may surprise the user about a correct sweep. `cfg` is the configuration of its first point."""
    texts, rungs, total = [], options.rungs or [0], cfg.collector.total_frames
    num = len({_without_seed(words) for words in points})
    if options.draws is not None and num < options.draws:
        texts.append(f"sweep.draws={options.draws} gives only {counted(num, 'point')}: the values allow no others.")
    if as_written(master, "hydra.sweep.subdir") != sweep.DEFAULT_SUBDIR:
        texts.append("hydra.sweep.subdir has no effect with hydra/sweeper=halving: the overrides name the points.")
    if num == 1:
        texts.append(
            "all points differ only in the seed, and seeds go on together, so no point will be stopped."
            if len(points) > 1
            else "this is a sweep of one point, so no point will be stopped."
        )
    if rungs[-1] < total:
        texts.append(
            f"sweep.rungs ends at {rungs[-1]:,} frames, so no point reaches collector.total_frames={total}. To train "
            f"the best ones to their end, add {total} to sweep.rungs."
        )
    return texts


def _without_seed(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if key_of(word) != "seed")


@dataclass
class _Point:
    """A point of the sweep.

    Attributes:
        config: a hash of the configuration.
        values: the objectives, by the frames of the rung.
        failure: the error of a point that failed.
    """

    name: str
    words: Sequence[str]
    frames_per_batch: int
    config: str
    values: dict[int, list[float]] = field(default_factory=dict)
    failure: BaseException | None = None

    def batches(self, rung: int) -> int:
        """Returns the number of batches after which the point has reached a rung."""
        return math.ceil(rung / self.frames_per_batch)

    def at(self, rung: int) -> list[str]:
        """Returns the overrides with which the point runs to a rung, in its own folder."""
        return [*self.words, f"run.max_batches={self.batches(rung)}", f"hydra.sweep.subdir={quoted(self.name)}"]


def _hash(cfg: RunConfig) -> str:
    return sha256(config_text(cfg).encode()).hexdigest()


def _numbers(value: Any) -> list[float]:
    return [float(each) for each in (value if isinstance(value, list) else [value])]


@dataclass(eq=False)
class _Candidate:
    """The points that differ only in their seeds.

    Attributes:
        end: where and why the candidate ended.
    """

    name: str
    words: tuple[str, ...]
    points: list[_Point]
    end: str = ""

    def values(self, rung: int) -> list[float] | None:
        """Returns the mean of each objective over the seeds; None before all of them have reached the rung."""
        values = [point.values.get(rung) for point in self.points]
        return None if None in values else [fmean(each) for each in zip(*filter(None, values), strict=True)]


class Halving:
    """Runs the points of a sweep over its rungs.

    Args:
        launch: runs points, given by their overrides, and returns their jobs; see Hydra's `Launcher.launch`.
        checked: the points, composed and checked, by their overrides.

    Raises:
        ConfigError: there are no points, because the sweeper belongs to another application of Hydra.
    """

    def __init__(
        self,
        master: DictConfig,
        launch: Callable[[Sequence[Sequence[str]], int], Sequence[JobReturn]],
        checked: Mapping[tuple[str, ...], Composed],
    ):
        if not checked:
            raise ConfigError("hydra/sweeper=halving only works with `collectx run`. Choose another hydra/sweeper.")
        self._master, self._launch = master, launch
        self._options = options_of(master)
        self._rungs = self._options.rungs or []
        self._objectives = objectives(master)
        self._folder = Path(str(master.hydra.sweep.dir))
        # Names do not depend on which values there are now: the sweep may get more.
        shared = sweep.fixed_words(master.hydra)
        self._points = [
            _Point(name, words, point.cfg.collector.frames_per_batch, _hash(point.cfg))
            for name, (words, point) in zip(sweep.names([*checked], shared), checked.items(), strict=True)
        ]
        self._saved: dict[str, dict[str, Any]] = {}
        by_words: dict[tuple[str, ...], list[_Point]] = {}
        for point in self._points:
            by_words.setdefault(_without_seed(point.words), []).append(point)
        names = sweep.names([*by_words], shared) if len(by_words) > 1 else ["all"]
        named = zip(names, by_words.items(), strict=True)
        self._candidates = [_Candidate(name, words, points) for name, (words, points) in named]

    def run(self, overrides: Sequence[str]) -> None:
        """Runs the sweep; blocks until it has ended. Prints what each rung kept. The best candidate is described by the
        values of the `overrides` that have several."""
        self._folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self._master, self._folder / "multirun.yaml")
        self._read()
        alive, stopped = list(self._candidates), list[_Candidate]()
        num_started = 0
        try:
            for number, rung in enumerate(self._rungs, 1):
                num_started += self._run_to(rung, number, alive, num_started)
                ranked = self._ranked(alive, rung)
                is_last = number == len(self._rungs)
                num_kept = len(alive) if is_last else math.ceil(len(alive) / self._options.reduction)
                for place, candidate in enumerate(ranked, 1):
                    self._tell(candidate, number, place, len(alive), is_stopped=place > num_kept)
                alive, stopped = ranked[:num_kept], [*ranked[num_kept:], *stopped]
            self._write_best(alive, {each.key_or_group for each in parsed(overrides) if each.is_sweep_override()})
            if not num_started:
                print("\nsweep: nothing is left to do")
        finally:
            self._print([*alive, *stopped])
        if lost := [point for point in self._points if point.failure]:
            raise PointFailed(f"{counted(len(lost), 'run')} of {len(self._points)} failed")

    def _run_to(self, rung: int, number: int, alive: Sequence[_Candidate], num_started: int) -> int:
        """Runs the points that have not reached a rung yet to it; returns how many."""
        points = [point for candidate in alive for point in candidate.points]
        for point in points:
            if longer := self._take(point, rung, point.batches(rung) + 1):
                printing.note(
                    f"{point.name} is ranked by {longer['frames']:,} frames, as it went on without the sweep."
                )
        waiting = [point for point in points if rung not in point.values]
        if waiting:
            which = f"rung {number} of {len(self._rungs)}"
            runs = f" ({counted(len(points), 'run')})" if len(points) > len(alive) else ""
            done = f", {len(points) - len(waiting)} already done" if len(waiting) < len(points) else ""
            print(f"\nsweep: {which}: {counted(len(alive), 'point')}{runs} to {rung:,} frames{done}")
            try:
                jobs = self._launch([point.at(rung) for point in waiting], num_started)
            except BaseException:
                for point in waiting:
                    self._take(point, rung, point.batches(rung))
                raise
            for point, job in zip(waiting, jobs, strict=True):
                if job.status is JobStatus.COMPLETED:
                    point.values[rung] = _numbers(job.return_value)
                else:
                    point.failure = job._return_value
            self._write()
        return len(waiting)

    def _take(self, point: _Point, rung: int, num_batches: int) -> dict[str, Any]:
        """Takes the result of a point that has no value at a rung, if it has completed at least `num_batches`. Returns
        this result, otherwise nothing."""
        run_folder = RunFolder(self._folder / point.name)
        result = {} if rung in point.values else run_folder.read_result() or {}
        if result.get("status") != Status.COMPLETED or result["batches"] < num_batches:
            return {}
        point.values[rung] = _numbers(objective(run_folder, point.name, self._objectives, self._master.hydra))
        return result

    def _ranked(self, alive: Sequence[_Candidate], rung: int) -> list[_Candidate]:
        """Returns the candidates that have reached a rung, the best first."""
        there = [(candidate, values) for candidate in alive if (values := candidate.values(rung)) is not None]
        keys = ranks([values for _, values in there], self._objectives)
        return [there[i][0] for i in sorted(range(len(there)), key=keys.__getitem__)]

    def _tell(self, candidate: _Candidate, number: int, place: int, num: int, is_stopped: bool) -> None:
        """Records how a candidate was ranked at a rung: for the table, and in the result of each of its points that has
        not gone on since."""
        is_last = number == len(self._rungs)
        where, rank = f"rung {number} of {len(self._rungs)}", f"{place} of {num}"
        candidate.end = f"stopped at rung {number}: {rank}" if is_stopped else f"completed: {rank}" if is_last else ""
        reason = f"the sweep stopped it at {where}" if is_stopped else f"it reached {where}"
        reason += f", where it ranked {rank} by {', '.join(self._objectives)}"
        told = {"number": number, "of": len(self._rungs), "rank": place, "num_ranked": num, "stopped": is_stopped}
        for point in candidate.points:
            run_folder = RunFolder(self._folder / point.name)
            result = run_folder.read_result() or {}
            if result.get("batches") == point.batches(self._rungs[number - 1]):
                why = {} if result["exit_reason"] == ALL_DELIVERED else {"exit_reason": reason}
                write_json(run_folder.result, {**result, **why, "rung": told})

    def _read(self) -> None:
        """Restores the values that an earlier command recorded."""
        path = self._folder / "halving.json"
        try:
            saved = json.loads(path.read_text())
            rungs = saved["rungs"]
            compared_by, known = saved["objective"], {each["name"]: each for each in saved["points"]}
            changed = [each.name for each in self._points if known.get(each.name, vars(each))["config"] != each.config]
            self._saved = known
            # More values may have given a point a longer name.
            names = {point.name for point in self._points}
            renamed = {each["config"]: each["name"] for each in known.values() if each["name"] not in names}
            for point in self._points:
                if point.name not in known:
                    point.name = renamed.pop(point.config, point.name)
                values = known.get(point.name, {"values": {}})["values"]
                point.values = {int(rung): value for rung, value in values.items()}
        except FileNotFoundError:
            pass
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is damaged: {error!r}. Remove it: the points continue from their folders all the same."
            ) from error
        else:
            now = self._rungs
            what = f"sweep.rungs={now}" if now != rungs else f"sweep.objective={self._objectives}"
            if now != rungs or compared_by != self._objectives:
                raise ConfigError(
                    f"{what} cannot be used in {self._folder}: its points were compared by {compared_by} at {rungs}, "
                    "and the best are already beyond. Choose another hydra.sweep.dir."
                )
            if changed:
                raise ConfigError(
                    f"{self._folder} contains points with another configuration: {', '.join(changed)}. Choose another "
                    "hydra.sweep.dir."
                )

    def _write(self, ranked: Sequence[_Candidate] = ()) -> None:
        """Writes `halving.json`, with the table that the sweep prints of these `ranked` candidates."""
        now = {each.name: {"name": each.name, "config": each.config, "values": each.values} for each in self._points}
        points, (head, rows) = [*(self._saved | now).values()], self._table(ranked)
        content = {"objective": self._objectives, "rungs": self._rungs, "points": points, "head": head, "rows": rows}
        write_json(self._folder / "halving.json", content)

    def _write_best(self, ranked: Sequence[_Candidate], swept: Collection[str]) -> None:
        """Writes the best candidate at the last rung; of several objectives, the Pareto front."""
        values = [each.values(self._rungs[-1]) or [] for each in ranked]
        found = [
            {"params": {each.key_or_group: each.value() for each in parsed(one.words) if each.key_or_group in swept}}
            for one in ranked
        ]
        content: dict[str, Any] = {"name": "halving"}
        if len(self._objectives) > 1:
            fronts = [front for front, _ in ranks(values, self._objectives)]
            front = [each | {"values": means} for each, means in zip(found, values, strict=True)]
            content["solutions"] = front[: fronts.count(0)]
        elif found:
            content |= {"best_params": found[0]["params"], "best_value": values[0][0]}
        OmegaConf.save(OmegaConf.create(content), self._folder / "optimization_results.yaml")

    def _table(self, ranked: Sequence[_Candidate]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Returns head and rows of the candidates with their values at each rung: the ranked ones, then the others."""
        others = [each for each in self._candidates if each not in ranked]
        has_seeds = len(self._candidates) < len(self._points)
        rows = []
        for each in [*ranked, *others]:
            is_lost = any(point.failure for point in each.points)
            values = [each.values(rung) or () for rung in self._rungs]
            numbers = [", ".join(map(printing.number_cell, means)) for means in values]
            seeds = [str(len(each.points))] * has_seeds
            rows.append((each.name, "failed" if is_lost else each.end or self._state(each), *seeds, *numbers))
        return ("point", "status", *["seeds"] * has_seeds, *(f"{rung:,}" for rung in self._rungs)), rows

    def _state(self, candidate: _Candidate) -> str:
        """Returns the status of a candidate that has not ended."""
        runs = [RunFolder(self._folder / point.name) for point in candidate.points]
        begun = [run for run in runs if run.path.exists()]
        words = [str(each.status) for each in statuses(begun)] + ["not started"] * (len(runs) - len(begun))
        return next((word for word in (Status.INTERRUPTED, Status.WAITING) if word in words), words[0])

    def _print(self, ranked: Sequence[_Candidate]) -> None:
        """Prints and writes the table, and prints why points failed."""
        self._write(ranked)
        head, rows = self._table(ranked)
        print()
        printing.print_table(rows, head)
        for point in self._points:
            # The command lists mistakes in the configuration.
            if point.failure is not None and not isinstance(point.failure, ConfigError):
                printing.error(text_of(point.failure))


def ranks(values: Sequence[Sequence[float]], names: Sequence[str]) -> list[tuple[int, float]]:
    """Returns a key for each point by which the best is sorted first: the number of its Pareto front (Deb et al. 2002,
    "NSGA-II"), then the first objective.

    Args:
        values: the objectives of each point.
        names: the names of the objectives, which tell whether less is better.
    """
    costs = [tuple(map(printing.rank, each, names)) for each in values]
    fronts: dict[int, int] = {}
    left, front = set(range(len(costs))), 0
    while left:
        best = {i for i in left if not any(_dominates(costs[j], costs[i]) for j in left)}
        fronts |= dict.fromkeys(best, front)
        left -= best
        front += 1
    return [(fronts[i], cost[0]) for i, cost in enumerate(costs)]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
