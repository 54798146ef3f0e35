"""Sweeps: composes and checks the points of `collectx run -m`, runs them one after another, or as jobs, and skips
completed ones.

    <sweep>/<point's name>/     a run folder, such as `collector.num_workers=2,seed=1`
    <sweep>/multirun.yaml       the configuration that the points vary

A point is completed if a run folder in the sweep's folder has the same configuration in its snapshot and a completed
result, independent of its number. An interrupted or failed point continues from its newest checkpoint.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import foreign_code, output, sweeper
from collectx.cli.compose import Composed, Composer, overrides_of, parsed, typed, without_hydra
from collectx.cli.overrides import Checked
from collectx.cli.session import Session
from collectx.config.derived import ELSEWHERE
from collectx.config.schema.run import RunConfig
from collectx.errors import CollectxError, ConfigError
from collectx.run import RunFolder
from collectx.run.saved_config import completed, config_text, saved_text

_NAME_LENGTH = 120


@dataclass(frozen=True)
class Point:
    """A point of a sweep. Its name, the overrides that differ between the points, as in
    `collector.num_workers=2,seed=1`, is that of its folder and its row in the table."""

    name: str
    composed: Composed


class Sweep:
    """A sweep whose configuration is checked.

    Args:
        composer: composes the points of a sweeper that chooses them by the results of others.
        master: the configuration that the points vary, Hydra's part included.
        points: all points; None: the sweeper chooses them.

    Attributes:
        folder: the sweep's folder.
        folders: names and run folders of the points that have run or were completed before.
    """

    def __init__(self, composer: Composer, master: DictConfig, points: Sequence[Point] | None):
        self.folders: list[tuple[str, Path]] = []
        self._composer = composer
        self._master = master
        self._points = points

    @property
    def folder(self) -> Path:
        return Path(self._master.hydra.sweep.dir)

    def run(self, session: Session) -> bool:
        """Blocks until all points have ended; returns whether the sweeper did not fail, which is reported.

        Raises:
            sweeper.Stopped: a point was interrupted.
        """
        master = self._master
        context = self._composer.context(master)
        context.callbacks.on_multirun_start(config=master, config_name=self._composer.config_name)
        is_complete = True
        if self._points is None:
            is_complete = self._run_sweeper(session, context)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(master, self.folder / "multirun.yaml")
            size = master.hydra.sweeper.max_batch_size or len(self._points)
            for start in range(0, len(self._points), size):
                for job in self._run_points(self._points[start : start + size], session, context):
                    _ = job.return_value  # raises the error of a failed job
        context.callbacks.on_multirun_end(config=master, config_name=self._composer.config_name)
        return is_complete

    def _run_sweeper(self, session: Session, context: HydraContext) -> bool:
        """Runs the points that a sweeper draws. It may draw values that contradict each other: such a point has
        failed."""
        objective = str(self._master.sweep.objective)

        def run_points(overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
            # The names must also differ from those of points that come later.
            named = zip(names(overrides, set(overrides_of(self._master))), overrides, strict=True)
            points = [Point(name, self._composer.examine(words, master=self._master)) for name, words in named]
            first = len(self.folders)
            jobs = self._run_points(points, session, context)
            if session.is_detached or session.is_interrupted:
                raise sweeper.Stopped
            for job, (name, folder) in zip(jobs, self.folders[first:], strict=True):
                sweeper.set_return_value(job, name, RunFolder(folder), objective)
            return jobs

        try:
            sweeper.sweep_with(self._master, context, run_points)
        except (OSError, OmegaConfBaseException):
            raise
        except Exception as error:
            text = str(error).strip()
            if not isinstance(error, (HydraException, CollectxError)):
                text = f"{self._master.hydra.sweeper._target_}: {type(error).__name__}: {error}"
            if not self.folders:
                raise error if isinstance(error, ConfigError) else ConfigError([text]) from error
            output.error(text)
            return False
        return True

    def _run_points(self, points: Sequence[Point], session: Session, context: HydraContext) -> list[JobReturn]:
        """Runs the points that are not completed; blocks until all have ended."""
        done = completed(self.folder)
        texts = ["" if point.composed.problems else config_text(point.composed.cfg) for point in points]
        for point, text in zip(points, texts, strict=True):
            self._set_folder(point, text, done)
        print(f"sweep: {len(points)} points, {sum(text in done for text in texts)} of them done already")
        jobs = []
        for number, (point, text) in enumerate(zip(points, texts, strict=True), start=1):
            cfg, problems = point.composed.cfg, point.composed.problems
            if problems:
                named = ConfigError([f"{problem} [{point.name}]" for problem in problems])
                jobs.append(JobReturn(status=JobStatus.FAILED, _return_value=named))
            elif text in done:
                jobs.append(JobReturn(status=JobStatus.COMPLETED))
            else:
                if cfg.launcher.kind not in ELSEWHERE:
                    print(f"\nsweep: point {number} of {len(points)}: {point.name}", flush=True)
                jobs.append(session.run(context, point.composed.node, cfg, point.name))
                if session.is_interrupted:
                    raise sweeper.Stopped
        session.submit(self.folder)
        sys.stdout.flush()
        return jobs

    def _set_folder(self, point: Point, text: str, done: dict[str, Path]) -> None:
        """Sets the run folder of a point: that of an earlier attempt if it was completed; otherwise one of its name, or
        of its name with a number, if another configuration has that folder already."""
        root = self.folder.absolute()
        if point.composed.problems:
            self.folders.append((point.name, root / point.name))
            return
        hydra = point.composed.node.hydra
        with open_dict(hydra):
            # The default contains the time, which differs between the points.
            hydra.sweep.dir = str(self.folder)
            hydra.job.id = hydra.job.num = len(self.folders)
            folder = done.get(text)
            if folder is None:
                is_chosen = any("hydra.sweep.subdir=" in word for word in overrides_of(self._master, "hydra"))
                first = folder = root / (str(hydra.sweep.subdir) if is_chosen else point.name)
                planned, number = {path for _, path in self.folders}, 1
                while folder in planned or _has_other_run(RunFolder(folder), text):
                    number += 1
                    folder = first.with_name(f"{first.name}_{number}")
                if not point.composed.cfg.run.overwrite:
                    foreign_code.check_checkpoints(RunFolder(folder))
            hydra.sweep.subdir = str(folder.relative_to(root))
        self.folders.append((point.name, folder))


def prepare(
    composer: Composer, checked: Checked, is_multirun: bool, machine_problems: Callable[[RunConfig, bool], list[str]]
) -> Sweep:
    """Composes and checks every point, and prints the notes about them.

    Args:
        is_multirun: whether the command line has the flag.
        machine_problems: checks a valid configuration against this machine; the second argument is whether to print
            warnings.

    Raises:
        ConfigError: with every problem of every point, each once.
    """
    try:
        mode = ["hydra.mode=MULTIRUN"] if is_multirun else []
        master = composer.load([*checked.overrides, *mode], RunMode.MULTIRUN)
        is_basic = sweeper.is_basic(master)
        params = composer.check([f"{key}={value}" for key, value in (master.hydra.sweeper.get("params") or {}).items()])
        overrides = parsed([*(params.overrides if is_basic else ()), *overrides_of(master)])
        if not is_basic:
            node, note = composer.load_without_unused_keys(sweeper.sample(overrides), master)
    except ConfigError as error:
        raise ConfigError([*checked.problems, *error.problems]) from error
    swept = [override for override in overrides if override.is_sweep_override()]
    # The chosen launcher may turn every run into a sweep of one or more points.
    if "MULTIRUN" not in str(master.hydra.mode):
        text = f"{_text(swept)}: several values are a sweep: add -m; a list is key=[a,b]."
        raise ConfigError([*checked.problems, text])
    if not is_basic:
        if note:
            output.note(note)
        cfg, problems = typed(without_hydra(node), ignore=checked.broken)
        problems = [*checked.problems, *problems]
        if problems := problems or sweeper.problems(node, cfg) or machine_problems(cfg, True):
            raise ConfigError(problems)
        return Sweep(composer, master, None)
    if continuous := [override for override in swept if not override.is_discrete_sweep()]:
        text = (
            f"{_text(continuous)}: Hydra's basic sweeper enumerates values, which an interval does not have: use "
            "choice(a,b) or range(a,b,step), or a sweeper that draws values, such as hydra/sweeper=optuna "
            "(pip install hydra-optuna-sweeper)."
        )
        raise ConfigError([*checked.problems, text])
    (combinations,) = BasicSweeper.split_arguments(overrides, None)
    points = [
        Point(name, composer.examine(words, checked.broken, master))
        for name, words in zip(names(combinations), combinations, strict=True)
    ]
    where: dict[str, list[str]] = {}
    for point in points:
        cfg, problems = point.composed.cfg, point.composed.problems
        for problem in problems or machine_problems(cfg, point is points[0]):
            where.setdefault(problem, []).append(point.name)
    for text in dict.fromkeys(point.composed.note for point in points if not point.composed.problems):
        if text:
            output.note(text)
    problems = [problem if len(at) == len(points) else f"{problem} [{'; '.join(at)}]" for problem, at in where.items()]
    if problems := [*checked.problems, *params.problems, *problems]:
        raise ConfigError(problems)
    return Sweep(composer, master, points)


def _text(overrides: Sequence[Override]) -> str:
    return " ".join(str(override.input_line).lstrip("+") for override in overrides)


def names(combinations: Sequence[Sequence[str]], fixed: Collection[str] | None = None) -> list[str]:
    """The names of the points: the overrides that differ between them, or from `fixed`, the overrides of all points."""
    columns = [*zip(*combinations, strict=True)]
    varied = [each for each in columns if len(set(each)) > 1 or (fixed is not None and each[0] not in fixed)]
    if not varied:
        return ["0"] * len(combinations)
    rows = zip(*varied, strict=True)
    return [_folder_name(",".join(text.lstrip("+") for text in row)) for row in rows]


def _folder_name(text: str) -> str:
    """`text` without characters that a path cannot have; long names are cut and end with a hash."""
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    if len(safe) <= _NAME_LENGTH:
        return safe
    return f"{safe[: _NAME_LENGTH - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _has_other_run(files: RunFolder, text: str) -> bool:
    return files.has_run and saved_text(files) != text
