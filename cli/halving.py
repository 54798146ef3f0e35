"""`hydra/sweeper=halving`: runs all points of a sweep to the first rung, and only the best of them on to the next one
(successive halving: Jamieson & Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization").

    <sweep>/halving.json    the value of each point at each rung that it has reached, and why it was stopped

A rung ends a point by `run.max_batches`, with a checkpoint, from which the next rung resumes it. So the batches of a
point are those of a run without rungs, and a point that was stopped can go on in a later sweep.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from collectx.cli import sweep
from collectx.cli.compose import Composed, examine, parsed
from collectx.cli.overrides import quoted
from collectx.cli.task import objectives
from collectx.config.check import check_section
from collectx.config.problem import counted
from collectx.config.schema.fields import Unset
from collectx.config.schema.run import RunConfig, SweepConfig
from collectx.errors import CollectxError, ConfigError, text_of
from collectx.run.folder.files import write_json
from collectx.run.folder.saved_config import config_text
from collectx.run.terminal import printing


def rungs_of(master: DictConfig, overrides: Sequence[Override]) -> sweep.Rungs:
    """See `collectx.cli.sweep.prepare`."""
    try:
        options = options_of(master)
        draws, _ = options.draws, options.seed
    except Unset:  # a wrong option of the sweep, which the check of the first point tells
        return sweep.Rungs([sweep.sample(overrides)], lambda cfg: [])
    if draws is None and (continuous := [each for each in overrides if not each.is_discrete_sweep()]):
        texts = " ".join(str(each.input_line) for each in continuous if each.is_sweep_override())
        if texts:
            raise ConfigError(f"{texts} is an interval. Say how many points to draw from it, as in sweep.draws=64.")
    return sweep.Rungs(points_of(overrides, options), partial(problems_of, options=options))


def options_of(master: DictConfig) -> SweepConfig:
    values: Any = OmegaConf.to_container(master.sweep)
    return check_section("sweep", values)


def points_of(overrides: Sequence[Override], options: SweepConfig) -> list[list[str]]:
    """Returns the overrides of every point: all combinations, or `sweep.draws` random ones."""
    if options.draws is None:
        return sweep.product(overrides)
    draw = random.Random(options.seed)
    drawn = ([f"{each.get_key_element()}={_drawn(each, draw)}" for each in overrides] for _ in range(options.draws))
    return [*map(list, dict.fromkeys(map(tuple, drawn)))]


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
            f"sweep.rungs ends at {rungs[-1]} frames, but collector.total_frames={total} ends each point before. Use "
            f"collector.total_frames={rungs[-1]}."
        )
    elif len({math.ceil(rung / cfg.collector.frames_per_batch) for rung in rungs}) < len(rungs):
        texts.append(
            f"sweep.rungs={list(rungs)} has rungs within one batch of {cfg.collector.frames_per_batch} frames "
            "(collector.frames_per_batch). Name rungs that are further apart."
        )
    if cfg.run.max_batches is not None:
        texts.append("run.max_batches cannot be used with hydra/sweeper=halving, which sets it. Leave it out.")
    return texts


@dataclass
class _Point:
    """A point of the sweep.

    Attributes:
        config: a hash of the configuration.
        values: the objectives, by the frames of the rung.
        end: why the point did not reach the last rung.
        failure: the error of a point that failed.
    """

    name: str
    words: list[str]
    frames_per_batch: int
    config: str
    values: dict[int, list[float]] = field(default_factory=dict)
    end: str = ""
    failure: str = ""

    def at(self, rung: int) -> list[str]:
        """Returns the overrides with which the point runs to a rung, in its own folder."""
        batches = math.ceil(rung / self.frames_per_batch)
        return [*self.words, f"run.max_batches={batches}", f"hydra.sweep.subdir={quoted(self.name)}"]


class Halving:
    """Runs the points of a sweep over its rungs.

    Args:
        launch: runs points, given by their overrides, and returns their jobs; see Hydra's `Launcher.launch`.
        checked: the points that the command has composed, by their overrides.
    """

    def __init__(
        self,
        context: HydraContext,
        master: DictConfig,
        launch: Callable[[Sequence[Sequence[str]], int], Sequence[JobReturn]],
        checked: Mapping[tuple[str, ...], Composed],
    ):
        self._context, self._master, self._launch, self._checked = context, master, launch, checked
        self._options = options_of(master)
        self._objectives = objectives(master)
        self._folder = Path(str(master.hydra.sweep.dir))

    def run(self, overrides: Sequence[str]) -> None:
        """Runs the sweep; blocks until it has ended. Prints what each rung kept."""
        self._folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self._master, self._folder / "multirun.yaml")
        words = points_of(parsed(overrides), self._options)
        names = sweep.names(words)
        points = [self._point(name, each) for name, each in zip(names, words, strict=True)]
        self._read(points)
        try:
            self._climb(points)
        finally:
            self._print(points)

    def _climb(self, points: Sequence[_Point]) -> None:
        alive, num_started = list(points), 0
        rungs = self._options.rungs or []
        for number, rung in enumerate(rungs):
            waiting = [point for point in alive if rung not in point.values]
            if waiting:
                print(f"\nsweep: rung {number + 1} of {len(rungs)}: {counted(len(alive), 'point')} to {rung:,} frames")
                jobs = self._launch([point.at(rung) for point in waiting], num_started)
                num_started += len(waiting)
                for point, job in zip(waiting, jobs, strict=True):
                    self._take(point, rung, job)
            ranked = self._ranked(alive, rung)
            if rung != rungs[-1]:
                num_kept = math.ceil(len(alive) / self._options.reduction)
                for place, point in enumerate(ranked[num_kept:], num_kept + 1):
                    point.end = f"stopped: {place} of {len(ranked)}"
                alive = ranked[:num_kept]
            write_json(self._folder / "halving.json", self._content(points))
        if not num_started:
            print("\nsweep: nothing is left to do")
        if lost := [point for point in points if point.failure]:
            raise CollectxError(f"{counted(len(lost), 'point')} of {len(points)} failed")

    def _point(self, name: str, words: list[str]) -> _Point:
        composed = self._checked.get(sweep.last_of_each_key(words))
        if composed is None:  # from `hydra.sweeper.params`
            composed = examine(self._context.config_loader.load_sweep_config(self._master, words))
        cfg = composed.cfg
        return _Point(name, words, cfg.collector.frames_per_batch, sha256(config_text(cfg).encode()).hexdigest())

    def _take(self, point: _Point, rung: int, job: JobReturn) -> None:
        """Records what a point has reached at a rung."""
        if job.status is not JobStatus.COMPLETED:
            point.failure = text_of(job._return_value)
            return
        value = job.return_value
        point.values[rung] = [float(each) for each in (value if isinstance(value, list) else [value])]

    def _ranked(self, alive: Sequence[_Point], rung: int) -> list[_Point]:
        """Returns the points that have reached a rung, the best first."""
        there = [point for point in alive if rung in point.values]
        keys = ranks([point.values[rung] for point in there], self._objectives)
        return [there[i] for i in sorted(range(len(there)), key=keys.__getitem__)]

    def _read(self, points: Sequence[_Point]) -> None:
        """Restores the values that an earlier command recorded."""
        path = self._folder / "halving.json"
        try:
            saved = json.loads(path.read_text())
            rungs = saved["rungs"]
            objective, known = saved["objective"], {each["name"]: each for each in saved["points"]}
            changed = [point.name for point in points if known.get(point.name, vars(point))["config"] != point.config]
            for point in points:
                values = known.get(point.name, {"values": {}})["values"]
                point.values = {int(rung): value for rung, value in values.items()}
        except FileNotFoundError:
            pass
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is damaged: {error!r}. Remove it: the points continue from their folders all the same."
            ) from error
        else:
            now = self._options.rungs or []
            what = f"sweep.rungs={now}" if now != rungs else f"sweep.objective={self._objectives}"
            if now != rungs or objective != self._objectives:
                raise ConfigError(
                    f"{what} cannot be used in {self._folder}: its points were compared by {objective} at {rungs}, and "
                    "the best are already beyond. Choose another hydra.sweep.dir."
                )
            if changed:
                raise ConfigError(
                    f"{self._folder} contains points with another configuration: {', '.join(changed)}. Choose another "
                    "hydra.sweep.dir."
                )

    def _content(self, points: Sequence[_Point]) -> dict[str, Any]:
        """Returns what `halving.json` contains."""
        content = [
            {
                "name": each.name,
                "config": each.config,
                "values": each.values,
                "end": "failed" if each.failure else each.end,
            }
            for each in points
        ]
        return {"objective": self._objectives, "rungs": self._options.rungs or [], "points": content}

    def _print(self, points: Sequence[_Point]) -> None:
        """Prints the points with their values at each rung, and why points failed."""
        print()
        head, rows = printing.rungs_table(self._content(points))
        printing.print_table(rows, head)
        for point in points:
            if point.failure:
                printing.error(point.failure)


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
