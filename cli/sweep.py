"""Composes and checks the points of `collectx run -m`, runs them one after another or as jobs, and skips completed
ones.

    <sweep>/<point's name>/     a run folder, such as `collector.num_workers=2,seed=1`
    <sweep>/multirun.yaml       the configuration that the points vary, written by Hydra's sweeper

A point is completed if a run folder in the sweep's folder, whatever its number, records the same configuration in its
snapshot and a completed result. An interrupted or failed point continues from its newest checkpoint.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from collectx.cli.compose import (
    Composed,
    Composer,
    as_written,
    examine,
    folder_of,
    is_enumerated,
    is_halving,
    overrides_of,
    parsed,
)
from collectx.cli.overrides import Checked, key_of, unused_folder
from collectx.cli.task import PointFailed, SweepStopped, Task, objective, objectives, run_of
from collectx.config.check import members
from collectx.config.problem import counted
from collectx.config.registry import GROUPS, schemas
from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.jobs.status import NamedRun
from collectx.place import place_of
from collectx.run import RunFolder
from collectx.run.after import foreign_code
from collectx.run.folder.layout import absolute, runs_below
from collectx.run.folder.result import command_start_s
from collectx.run.folder.saved_config import completed, config_text, saved_text
from collectx.run.preflight import SHARED_PATHS, argument_problems
from collectx.run.terminal import printing

# The maximum length of a name in bytes.
_NAME_LENGTH = 120
# The default of hydra.sweep.subdir, which the name of the point replaces.
DEFAULT_SUBDIR = "${hydra.job.num}"


@dataclass(frozen=True)
class Sweep:
    """A composed and checked sweep.

    Attributes:
        master: the configuration that the points vary.
        is_halving: whether the sweeper stops points early, and prints its own table.
        objective: the entry of `result.json` that ranks the points.
        is_ours: whether `hydra/launcher=collectx` runs the points.
        points: the points by their overrides; empty if the sweeper chooses them by the results of earlier ones.
    """

    master: DictConfig
    is_halving: bool
    folder: str
    objective: str
    is_ours: bool
    points: dict[tuple[str, ...], Composed]


class Rungs(NamedTuple):
    """What `hydra/sweeper=halving` runs: the overrides of each point, a function that returns why a configuration
    cannot be swept so, and one that returns notes about the sweep for the configuration of its first point."""

    points: list[list[str]]
    problems: Callable[[RunConfig], list[str]]
    notes: Callable[[RunConfig], list[str]]


def _in_points(names: Sequence[str]) -> str:
    """Returns the end of a problem that only some points of a sweep have."""
    return f"Affected point{'s' * (len(names) > 1)}: {'; '.join(names)}"


def prepare(
    composer: Composer,
    checked: Checked,
    is_multirun: bool,
    machine_problems: Callable[[RunConfig, bool], list[str]],
    halving: Callable[[DictConfig, Sequence[Override]], Rungs],
) -> Sweep:
    """Composes and checks every point, and prints the notes about them.

    Args:
        machine_problems: checks a valid configuration against this machine; the second argument is whether to print
            warnings.
        halving: returns the points of `hydra/sweeper=halving` for the configuration that they vary and the overrides.
    """
    try:
        mode = ["hydra.mode=MULTIRUN"] if is_multirun else []
        master = composer.load([*checked.overrides, *mode], RunMode.MULTIRUN)
        params = composer.check([f"{key}={value}" for key, value in (master.hydra.sweeper.get("params") or {}).items()])
    except ConfigError as error:
        raise ConfigError(*checked.problems, *error.problems) from error
    is_basic = is_enumerated(master.hydra)
    overrides = parsed([*params.overrides, *overrides_of(master.hydra)])
    swept = [override for override in overrides if override.is_sweep_override()]
    # The chosen launcher may turn every run into a sweep of one or more points.
    if "MULTIRUN" not in str(master.hydra.mode):
        how = "add -m" if all(each.is_discrete_sweep() for each in swept) else "add -m hydra/sweeper=halving, or optuna"
        text = f"{_text(swept)} has several values. To sweep over them, {how}."
        if lists := [_as_list(override) for override in swept if _takes_list(override)]:
            text += f" To pass a list, write {' '.join(lists)}"
        if len(swept) == 1 and (number := _with_commas(swept[0])):
            text = f"{_text(swept)} has several values. Write {number}, or, to sweep over them, add -m."
        raise ConfigError(*checked.problems, text)
    if is_basic and (continuous := [override for override in swept if not override.is_discrete_sweep()]):
        text = (
            f"{_text(continuous)} is an interval, which Hydra's basic sweeper cannot enumerate. Use choice(a,b) or "
            "range(a,b,step). Or use a sweeper that draws values: hydra/sweeper=halving, or hydra/sweeper=optuna (pip "
            "install 'collectx[optuna]')."
        )
        raise ConfigError(*checked.problems, text)
    if ours := [override for override in swept if override.key_or_group.startswith("sweep.")]:
        listed = [
            f"To pass a list, write {_as_list(override)}"
            for override in ours
            if override.key_or_group in ("sweep.rungs", "sweep.objective")
        ]
        text = f"{_text(ours)} has several values, but all points of a sweep share its options."
        raise ConfigError(*checked.problems, " ".join([text, *listed]))
    if empty := [
        override for override in swept if override.is_discrete_sweep() and next(iter(texts(override)), None) is None
    ]:
        text = f"{_text(empty)} contains no value, so there is nothing to sweep. Add one, as in seed=range(0,3)."
        raise ConfigError(*checked.problems, text)
    if "optuna" in master.hydra.sweeper._target_ and not swept and not _has_search_space(master):
        text = (
            "this sweep searches nothing, because no option has an interval or a choice. Add one, as in "
            "'trainer.learning_rate=tag(log,interval(1e-4,1e-2))'."
        )
        raise ConfigError(*checked.problems, text)
    rungs = halving(master, overrides) if is_halving(master.hydra) else None
    combinations = product(overrides) if is_basic else [sample(overrides)] if rungs is None else rungs.points
    points = [composer.examine(words, checked.broken, master) for words in combinations]
    where: dict[str, list[str]] = {}
    for point, name in zip(points, names(combinations), strict=True):
        problems = [*point.problems, *argument_problems(point.cfg)]
        if not problems and not checked.broken:
            problems = [
                *machine_problems(point.cfg, point is points[0] and not checked.problems),
                *([] if is_basic else _sweeper_problems(point) if rungs is None else rungs.problems(point.cfg)),
                *([] if is_basic else _wait_problems(point)),
            ]
        for problem in problems:
            where.setdefault(problem, []).append(name)
    for problem, at in _shared_outputs(points, names(combinations)):
        where.setdefault(problem, []).extend(at)
    meant = {override.key_or_group: _with_commas(override) for override in swept}
    problems = []
    for problem, at in where.items():
        number = meant.get(problem.partition("=")[0])
        more = [f"Did you mean {number}?"] * bool(number) + [_in_points(at)] * (len(at) < len(points))
        problems.append(" ".join([problem, *more]))
    # Other sweepers may write their parameters in another way.
    folder = unused_folder(checked.overrides, is_sweep=True)
    if problems := [*checked.problems, *folder, *(params.problems if is_basic or rungs else ()), *problems]:
        raise ConfigError(*problems)
    for text in dict.fromkeys(point.note for point in points if point.note):
        printing.note(text)
    for text in (*_rungs_notes(master, points[0].cfg, rungs), *_direction_notes(master)):
        printing.note(text)
    if repeated := [each for each in swept if is_basic and len(values := [*texts(each)]) > len({*values})]:
        printing.note(
            f"{_text(repeated)} contains a value twice, but each point runs once. To repeat a run, add another seed."
        )
    if is_multirun and is_basic and not swept:
        printing.note(
            "no option has several values, so this is a sweep of one run. To sweep over more, write, for example, "
            "seed=0,1,2."
        )
    is_listed = is_basic or rungs is not None
    by_words = dict(zip(map(last_of_each_key, combinations), points, strict=True)) if is_listed else {}
    is_ours = master.hydra.launcher._target_.startswith("hydra_plugins.collectx.")
    return Sweep(
        master, rungs is not None, folder_of(master, "hydra.sweep.dir"), objectives(master)[0], is_ours, by_words
    )


def _has_search_space(master: DictConfig) -> bool:
    """Whether Optuna finds its search space elsewhere than in overrides."""
    return any(OmegaConf.select(master, f"hydra.sweeper.{key}") for key in ("search_space", "custom_search_space"))


def _direction_notes(master: DictConfig) -> Iterator[str]:
    """Yields a note if a sweeper that searches looks for the worst value of an objective, and nobody typed that: Optuna
    minimises by default."""
    option = "hydra.sweeper.direction"
    value = OmegaConf.select(master, option)
    if value is None or any(key_of(word) == option for word in master.hydra.overrides.hydra):
        return
    # Optuna's plugin has an enum.
    names = [getattr(each, "name", each) for each in (value if OmegaConf.is_list(value) else [value])]
    better = ["minimize" if printing.rank(1.0, each) > 0 else "maximize" for each in objectives(master)]
    if wrong := [pair for *pair, right in zip(names, objectives(master), better, strict=False) if pair[0] != right]:
        looks = " and ".join(f"{'lowest' if name == 'minimize' else 'highest'} {each}" for name, each in wrong)
        shown = [f"[{','.join(each)}]" if OmegaConf.is_list(value) else each[0] for each in (names, better)]
        yield f"{option}={shown[0]} looks for the {looks}. Add {option}={shown[1]}."


def _rungs_notes(master: DictConfig, first: RunConfig, rungs: Rungs | None) -> list[str]:
    if rungs is not None:
        return rungs.notes(first)
    names = [name for name in ("sweep.rungs", "sweep.draws") if OmegaConf.select(master, name) is not None]
    return [f"{name} has no effect without hydra/sweeper=halving." for name in names]


def _shared_outputs(points: Sequence[Composed], named: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields a problem for each path at which several points would write, and the names of these points. A path that
    depends on the job, as with `${hydra:job.num}`, is not known yet."""
    for option, path_of in SHARED_PATHS.items():
        writers: dict[str, list[str]] = {}
        for point, name in zip(points, named, strict=True):
            path = None if point.problems or point.node.hydra.job.chdir else path_of(point.cfg)
            if path is not None and "${hydra:" not in str(as_written(point.node, option)):
                writers.setdefault(path, []).append(name)
        for path, at in writers.items():
            if len(at) > 1:
                yield (
                    f"{option}={path} cannot be used by {len(at)} points, because each would replace or mix what "
                    "another wrote. Leave it out: then it is in each run's folder. Or name the job in the path: "
                    f"'{option}={Path(path).with_stem(Path(path).stem + '-${hydra:job.num}')}'.",
                    at,
                )


def _sweeper_problems(point: Composed) -> list[str]:
    """Returns why a sweeper that searches cannot get the objective of this configuration's points."""
    messages = []
    direction, names = OmegaConf.select(point.node, "hydra.sweeper.direction"), objectives(point.node)
    count = len(direction) if OmegaConf.is_list(direction) else 1
    if OmegaConf.select(point.node, "sweep.objective") is None:
        messages.append("sweep.objective is missing. Add it, as in sweep.objective=mean_return.")
    elif count != len(names):
        messages.append(
            f"sweep.objective has {counted(len(names), 'entry', 'entries')} ({', '.join(names)}), but "
            f"hydra.sweeper.direction has {count}. Name one objective per direction, as in "
            "sweep.objective=[mean_return,wall_s] hydra.sweeper.direction=[maximize,minimize]."
        )
    return messages


def _wait_problems(point: Composed) -> list[str]:
    if not isinstance(point.cfg.launcher, SlurmLauncherConfig) or point.cfg.launcher.wait is not False:
        return []
    return [
        f"launcher.wait=false cannot be used: {point.node.hydra.sweeper._target_} needs the results of earlier points "
        "to choose values. Use launcher.wait=true."
    ]


def _text(overrides: Sequence[Override]) -> str:
    return " ".join(str(override.input_line).lstrip("+") for override in overrides)


def _with_commas(override: Override) -> str | None:
    """Returns `gamma=0.99` for `gamma=0,99`, and `total_frames=100_000` for `total_frames=100,000`; None for other
    overrides, and for options that take no such number."""
    if (word := re.fullmatch(r"(.+)=0,(\d+)", _text([override]))) and float in _types(override):
        return f"{word[1]}=0.{word[2]}"
    word = re.fullmatch(r"(.+)=(\d+(?:,000)+)", _text([override]))
    return f"{word[1]}={word[2].replace(',', '_')}" if word and int in _types(override) else None


def _types(override: Override) -> list[Any]:
    """Returns the types of the options that have the last name of an override; empty for other names."""
    name = override.key_or_group.rpartition(".")[2]
    hints = (get_type_hints(cls).get(name) for group in GROUPS for cls in schemas(group).values())
    return [each for hint in hints if hint is not None for each in members(hint)]


def _takes_list(override: Override) -> bool:
    """Whether a value may be a list: several loggers, options that are lists, and arguments of the user's code."""
    types = [get_origin(each) for each in _types(override)]
    return list in types or override.key_or_group == "logger" or ".kwargs." in override.key_or_group


def _as_list(override: Override) -> str:
    return shlex.quote(f"{override.key_or_group}=[{','.join(texts(override))}]")


def product(overrides: Sequence[Override]) -> list[list[str]]:
    """Returns the overrides of every point, as Hydra's basic sweeper passes them to its launcher."""
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        values[key] = [f"{key}={text}" for text in texts(override)]
    return [[*point] for point in itertools.product(*values.values())]


def fixed_words(hydra: DictConfig) -> set[str]:
    """Returns the overrides of a sweep that have one value, as sweepers pass them to the points."""
    (words,) = product([each for each in parsed(overrides_of(hydra)) if not each.is_sweep_override()])
    return {word.lstrip("+") for word in words}


def texts(override: Override) -> Iterable[str]:
    """Returns the values of an override, one for each point of the sweep."""
    return override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]


def last_of_each_key(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a point without those that a later one replaces: Hydra's basic sweeper passes both if a
    key is in `hydra.sweeper.params` and, with `++` before it, on the command line."""
    return tuple({key_of(word): word for word in words}.values())


def sample(overrides: Sequence[Override]) -> list[str]:
    """Returns the overrides of one point of the search space: the first value of each list, the middle of each
    interval."""
    return [_first(override) if override.is_sweep_override() else str(override.input_line) for override in overrides]


def _first(override: Override) -> str:
    value = override.value()
    text: object
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        middle = (value.start + value.end) / 2
        text = int(middle) if isinstance(value.start, int) and isinstance(value.end, int) else middle
    else:
        text = next(iter(texts(override)))
    return f"{override.get_key_element()}={text}"


@dataclass
class _Point:
    """A point of a sweep. `name` consists of the overrides that differ between the points, such as
    `collector.num_workers=2,seed=1`; its folder and its row in the table are called so. `job` is the return value for
    Hydra's sweeper; None before the point has run. `error` is the mistake for which it did not start."""

    name: str
    composed: Composed
    folder: Path
    job: JobReturn | None = None
    error: ConfigError | None = None


class PointRunner:
    """Runs the points that Hydra's sweeper passes to `hydra/launcher=collectx`.

    Args:
        task: a `Task`, which executes the runs and keeps their outcomes.
        master: the configuration that the points vary.

    Raises:
        ConfigError: `task` belongs to another application of Hydra.
    """

    def __init__(self, context: HydraContext, task: TaskFunction, master: DictConfig):
        if not isinstance(task, Task):
            raise ConfigError("hydra/launcher=collectx only works with `collectx run`. Choose another hydra/launcher.")
        self._context = context
        self._task = task
        self._master = master
        self._folder = Path(str(master.hydra.sweep.dir))
        self._is_enumerated = is_enumerated(master.hydra)
        # At each rung, a point is another configuration, but the same run.
        self._is_halving = is_halving(master.hydra)

    def run(self, overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Runs the points that are not completed; blocks until all have ended. Returns one job per point, with the
        objective. For a sweeper that only enumerates, a failed point is not a failed job, as that would end the sweep.
        Raises `SweepStopped` if a point was interrupted, or the sweeper needs the results of jobs that are still
        running."""
        from collectx.run.terminal.display import Point

        task = self._task
        # The names must also differ from those of points that come later.
        fixed = None if self._is_enumerated else fixed_words(self._master.hydra)
        if self._is_enumerated:
            overrides = list(dict.fromkeys(map(last_of_each_key, overrides)))
        done = completed(self._folder)
        named = zip(overrides, names(overrides, fixed), strict=True)
        points = [self._point(words, name, done) for words, name in named]
        num_done = sum(point.job is not None and not point.composed.problems for point in points)
        skipped = f", {num_done} already done" if num_done else ""
        if self._is_enumerated or num_done:
            print(f"sweep: {counted(len(points), 'run')}{skipped}", flush=True)
        jobs: list[NamedRun] = []
        width = max((len(point.name) for point in points), default=0)
        # A sweeper that searches passes a few points at a time.
        is_listed = self._is_enumerated or self._is_halving
        first, count = (1, len(points)) if is_listed else (len(task.points) - len(points) + 1, None)
        begin_s, start_s, num_to_run = command_start_s(), 0.0, sum(point.job is None for point in points)
        for number, point in enumerate(points, start=first):
            if point.job is None:
                num_left = sum(each.job is None for each in points)
                times = (
                    (num_to_run - num_left, num_left, begin_s, start_s)
                    if self._is_enumerated and len(points) > 1
                    else ()
                )
                task.point = Point(point.name, number, count, width, True, *times)
                point.job = self._start(point, jobs)
                if num_left == num_to_run:
                    start_s = (RunFolder(point.folder).read_result() or {}).get("start_s") or 0.0
                if task.is_interrupted:
                    raise SweepStopped
        task.execute(jobs, self._folder)
        sys.stdout.flush()
        if not self._is_enumerated and (task.is_detached or task.is_interrupted):
            raise SweepStopped
        return [self._returned(point) for point in points]

    def _point(self, words: Sequence[str], name: str, done: dict[str, Path]) -> _Point:
        """Composes and checks a point, unless the command did so already, and chooses its folder: that of a completed
        earlier attempt, or the folder named like the point, with a number if another configuration uses that one."""
        composed = self._task.checked.get(last_of_each_key(words))
        if composed is None:
            composed = examine(self._context.config_loader.load_sweep_config(self._master, list(words)))
        root, folders = absolute(self._folder), self._task.points
        if composed.problems:
            error = ConfigError(*[f"{problem} {_in_points([name])}" for problem in composed.problems])
            folders.append((name, root / name))
            return _Point(name, composed, root / name, JobReturn(status=JobStatus.FAILED, _return_value=error))
        hydra, text = composed.node.hydra, config_text(composed.cfg)
        with read_write(hydra), open_dict(hydra):
            # The default contains the time, which differs between the points.
            hydra.sweep.dir = str(self._folder)
            hydra.job.num = len(folders)
            hydra.job.id = str(len(folders))
            folder = done.get(text)
            if folder is None:
                is_default = as_written(composed.node, "hydra.sweep.subdir") == DEFAULT_SUBDIR
                folder = self._free_folder(root / (name if is_default else str(hydra.sweep.subdir)), text)
                if not (composed.cfg.run.overwrite or composed.cfg.run.trust):
                    foreign_code.check_checkpoints(RunFolder(folder))
            hydra.sweep.subdir = str(folder.relative_to(root) if folder.is_relative_to(root) else folder)
        if self._is_halving:
            name = folder.name
        if (name, folder) not in folders:
            folders.append((name, folder))
        is_done = text in done and composed.cfg.run.resume != "never"
        return _Point(name, composed, folder, JobReturn(status=JobStatus.COMPLETED) if is_done else None)

    def _free_folder(self, first: Path, text: str) -> Path:
        """Returns `first`, or its variant with the lowest number, that no other configuration uses."""
        taken, folder, number = {path for _, path in self._task.points}, first, 1
        if self._is_halving:
            return first
        while folder in taken or ((run_folder := RunFolder(folder)).has_run and saved_text(run_folder) != text):
            number += 1
            folder = first.with_name(f"{first.name}_{number}")
        return folder

    def _start(self, point: _Point, jobs: list[NamedRun]) -> JobReturn:
        """Makes the run folder with `.hydra`, and executes the run; or adds it to `jobs`."""

        def start(node: DictConfig) -> None:
            try:
                run = run_of(node, HydraConfig.get(), point.name)
                if place_of(run.cfg).is_job:
                    jobs.append(run)
                else:
                    self._task.execute([run])
            except ConfigError as error:
                # Not raised: Hydra would add text to it.
                self._task.problems.extend(error.problems)
                point.error = error

        keys = "hydra.sweep.dir", "hydra.sweep.subdir"
        return run_job(start, point.composed.node, *keys, hydra_context=self._context)

    def _returned(self, point: _Point) -> JobReturn:
        job = point.job
        assert job is not None
        if point.error is not None and not self._is_enumerated:
            job.status, job.return_value = JobStatus.FAILED, point.error
        if job.status is JobStatus.COMPLETED:
            node = point.composed.node
            try:
                job.return_value = objective(RunFolder(point.folder), point.name, objectives(node), node.hydra)
            except PointFailed as error:
                if not self._is_enumerated:
                    job.status, job.return_value = JobStatus.FAILED, error
        return job


def names(combinations: Sequence[Sequence[str]], fixed: set[str] | None = None) -> list[str]:
    """Returns the names of the points: the overrides in which they differ. With `fixed`, also those that are not in
    it: a sweeper that searches may later vary other keys."""
    points = [{key_of(word): word.lstrip("+") for word in words} for words in combinations]
    varied = [
        key
        for key in dict.fromkeys(key for point in points for key in point)
        if len(texts := {point.get(key) for point in points}) > 1 or (fixed is not None and not texts <= fixed)
    ]
    return [_folder_name(",".join(point[key] for key in varied if key in point)) or "0" for point in points]


def _folder_name(text: str) -> str:
    """Returns `text` without characters that a path cannot contain. Long names are cut and end with a hash."""
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    if len(safe.encode()) <= _NAME_LENGTH:
        return safe
    cut = safe.encode()[: _NAME_LENGTH - 9].decode(errors="ignore")
    return f"{cut}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def not_started(folder: Path) -> list[str]:
    """Returns the names of the points in `multirun.yaml` of which the folder has no run. Empty without such a file, if
    the sweeper chooses the points as it goes, or if Hydra wrote no `.hydra` that tells the points apart."""
    begun = set()
    try:
        hydra = OmegaConf.load(folder / "multirun.yaml").hydra
        if not is_enumerated(hydra):
            return []
        params = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        points = [last_of_each_key(words) for words in product(parsed([*params, *overrides_of(hydra)]))]
        for run in runs_below(folder, includes_root=False):
            begun.add(frozenset(map(str, OmegaConf.load(run.path / ".hydra" / "overrides.yaml"))))
    except (OSError, ValueError, AttributeError, yaml.YAMLError, HydraException, OmegaConfBaseException):
        return []
    return [name for words, name in zip(points, names(points), strict=True) if frozenset(words) not in begun]


def run_folders(root: Path) -> list[tuple[str, Path]]:
    """Returns the run folders of a sweep that another launcher than ours runs, each with the name of its point. All
    points are named after their folders if the `.hydra` of one cannot be read, or is newer than the result beside it:
    Hydra writes it even for a point whose folder is then refused."""
    folders = [run.path for run in runs_below(root, includes_root=False)]
    paths = {folder: folder.relative_to(absolute(root)) for folder in folders}
    folders.sort(key=lambda folder: [(len(part), part) for part in paths[folder].parts])
    overrides = []
    for folder in folders:
        path, result = folder / ".hydra" / "overrides.yaml", RunFolder(folder).result
        try:
            if result.exists() and result.stat().st_mtime_ns < path.stat().st_mtime_ns:
                break
            overrides.append([str(text) for text in OmegaConf.load(path)])
        except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError):
            break
    is_known = len(overrides) == len(folders)
    return list(zip(names(overrides) if is_known else [str(paths[folder]) for folder in folders], folders, strict=True))
