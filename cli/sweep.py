"""Sweeps: runs the points of `collectx run -m` one after another, or as jobs; skips completed ones.

    <sweep>/<point's name>/     a run folder, such as `collector.num_workers=2,seed=1`
    <sweep>/multirun.yaml       what Hydra writes

A point is completed if a run folder in the sweep's folder has the same configuration in its snapshot and a completed
result, independent of its number. Called by Hydra, in the command's process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import experiment, signatures, sweeper
from collectx.cli.compose import config_text, names, without_hydra
from collectx.cli.task import Task
from collectx.cli.typed import typed
from collectx.config.derived import ELSEWHERE
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, DamagedFile
from collectx.run import RunFolder, Status, rules

# The target in conf/hydra/launcher/points.yaml. Hydra imports plugins from this package only, where an editable install
# cannot have a module, so `register` adds the class.
_ADDRESS = "hydra_plugins.collectx.PointLauncher"


def register() -> None:
    """Makes `hydra/launcher=points` known to Hydra."""
    Plugins.instance().class_name_to_class[_ADDRESS] = PointLauncher


@dataclass(frozen=True)
class PlannedPoint:
    """One point and its run folder.

    Attributes:
        name: distinguishes it from the other points.
        folder: its run folder, absolute.
        node, cfg: its configuration, untyped with Hydra's part, and typed.
        is_done: an earlier attempt of the sweep completed it.
        is_job: it is submitted as a job with the others.
        problems: mistakes in its configuration: a sweeper may draw values that contradict each other.
    """

    name: str
    folder: Path
    node: DictConfig
    cfg: RunConfig
    is_done: bool
    is_job: bool
    problems: tuple[str, ...] = ()


class PointLauncher(Launcher):
    """Hydra's launcher. Runs points in this process, one after another, unless they are jobs."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context = hydra_context
        self.task = task_function
        self.config = config
        if isinstance(task_function, Task) and not sweeper.is_basic(config):
            task_function.sweeper = str(config.hydra.sweeper._target_)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the points that are not completed; blocks until all have ended. Hydra's basic sweeper calls it once,
        other sweepers for a few points at a time, whose objective they read.

        Raises:
            sweeper.Stopped: a point was interrupted.
        """
        setup_globals()
        task = self.task
        assert isinstance(task, Task)
        points = self._plan(job_overrides, initial_job_idx)
        task.sweep = Path(self.config.hydra.sweep.dir)
        task.points += [(point.name, point.folder) for point in points]
        print(f"sweep: {len(points)} points, {sum(point.is_done for point in points)} of them done already")
        jobs = [self._run_if_missing(point, f"{index + 1} of {len(points)}") for index, point in enumerate(points)]
        if task.job_runs:
            from collectx.cli import slurm

            slurm.run_jobs(task)
            task.job_runs.clear()
        sys.stdout.flush()
        if not sweeper.is_basic(self.config):
            if task.is_detached or any(run.status is Status.INTERRUPTED for run in task.results):
                raise sweeper.Stopped
            for point, job in zip(points, jobs, strict=True):
                sweeper.set_return_value(
                    job, point.name, RunFolder(point.folder), str(sweeper.objective_of(self.config))
                )
        return jobs

    def _run_if_missing(self, point: PlannedPoint, which: str) -> JobReturn:
        """Runs a point, unless it was completed before or cannot run."""
        if point.problems:
            return JobReturn(status=JobStatus.FAILED, _return_value=ConfigError(point.problems))
        if point.is_done:
            return JobReturn(status=JobStatus.COMPLETED)
        if not point.is_job:
            print(f"\nsweep: point {which}: {point.name}", flush=True)
        job = self._run(point)
        if job.status is JobStatus.COMPLETED and job.return_value is Status.INTERRUPTED:
            raise sweeper.Stopped
        return job

    def _plan(self, job_overrides: Sequence[Sequence[str]], first: int) -> list[PlannedPoint]:
        root = Path(self.config.hydra.sweep.dir).absolute()
        done = completed(root)
        chosen = _is_chosen(self.config, "hydra.sweep.subdir")
        # Names of points that come a few at a time must also differ from those of the other points.
        fixed = None if sweeper.is_basic(self.config) else set(self.config.hydra.overrides.task)
        planned: list[PlannedPoint] = []
        for offset, (overrides, name) in enumerate(zip(job_overrides, names(job_overrides, fixed), strict=True)):
            loader = self.context.config_loader
            node = loader.load_sweep_config(self.config, list(overrides))
            if unused := experiment.unused_keys(node, loader):
                node = loader.load_sweep_config(self.config, [*overrides, *(f"~{path}" for path in unused)])
            cfg, problems = typed(without_hydra(node))
            problems += [f"{problem} [{name}]" for problem in (*rules.problems(cfg), *signatures.problems(cfg))]
            text = "" if problems else config_text(cfg)
            with open_dict(node):
                node.hydra.job.id = node.hydra.job.num = first + offset
            folder = done.get(text)
            if folder is None:
                folder = root / (str(node.hydra.sweep.subdir) if chosen else name)
                folder = _unused(folder, text, lambda path: any(path == other.folder for other in planned))
            with open_dict(node):
                node.hydra.sweep.subdir = str(folder.relative_to(root))
            is_job = node.launcher.kind in ELSEWHERE
            planned.append(PlannedPoint(name, folder, node, cfg, text in done, is_job, tuple(problems)))
        return planned

    def _run(self, point: PlannedPoint) -> JobReturn:
        assert isinstance(self.task, Task)
        self.task.cfg = point.cfg
        return run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=point.node,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def completed(root: Path) -> dict[str, Path]:
    """Configuration -> run folder, of every completed run below `root`."""
    folders = {}
    for snapshot in sorted(root.glob("*/snapshot/config.yaml")):
        folder = RunFolder(snapshot.parent.parent)
        result = _result(folder)
        text = saved_text(folder)
        if result is not None and result["status"] == Status.COMPLETED and text is not None:
            folders[text] = folder.path
    return folders


def _result(folder: RunFolder) -> dict[str, Any] | None:
    """The result; None also if it is damaged, as the run has not completed."""
    try:
        return folder.read_result()
    except DamagedFile:
        return None


def saved_text(folder: RunFolder) -> str | None:
    """The configuration of a snapshot as `config_text`; None if it cannot be read."""
    try:
        node = OmegaConf.load(folder.config)
    except (OSError, OmegaConfBaseException, ValueError, yaml.YAMLError):
        return None
    if not isinstance(node, DictConfig):
        return None
    cfg, problems = typed(node)
    return None if problems else config_text(cfg)


def _unused(folder: Path, text: str, is_planned: Callable[[Path], Any]) -> Path:
    """`folder`, or the first of `folder_2`, `folder_3`, ... that has no run, or one of the same configuration, so
    that a changed sweep does not overwrite runs in its folder."""
    candidate, number = folder, 1
    while is_planned(candidate) or (RunFolder(candidate).has_run and saved_text(RunFolder(candidate)) != text):
        number += 1
        candidate = folder.with_name(f"{folder.name}_{number}")
    return candidate


def _is_chosen(config: DictConfig, key: str) -> bool:
    """Whether `key` is on the command line."""
    return any(str(text).lstrip("+").startswith(f"{key}=") for text in config.hydra.overrides.hydra)
