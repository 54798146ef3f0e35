"""The function that Hydra calls once for each run, and the outcomes of all runs of a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig

from collectx.config.derived import ELSEWHERE
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.run import Status


class Outcome(Protocol):
    """How a run ended, and its folder; `collectx.run.Result` is one."""

    @property
    def status(self) -> Status: ...
    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True)
class JobRun:
    """A run that is one job, trainer and workers.

    Attributes:
        name: distinguishes it from the other runs of a sweep.
        folder: its run folder, absolute.
    """

    name: str
    folder: Path
    cfg: RunConfig


@dataclass
class Task:
    """Executes local runs immediately; collects runs that are jobs, which are submitted when Hydra has composed all.

    Attributes:
        argv: the command line as typed, for the snapshot.
        cfg: the checked configuration of the run that Hydra calls next.
        results: outcomes of the runs that have ended.
        problems: mistakes in the configuration that only the run itself could find.
        job_runs: runs that are jobs, to be submitted.
        sweep: the folder of a sweep.
        points: names and run folders of all points of a sweep, including those that are done.
        is_detached: jobs keep running when the command ends.
        sweeper: the class of the sweeper, where it is not Hydra's basic one.
    """

    argv: Sequence[str]
    cfg: RunConfig | None = None
    results: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    job_runs: list[JobRun] = field(default_factory=list)
    sweep: Path | None = None
    points: list[tuple[str, Path]] = field(default_factory=list)
    is_detached: bool = False
    sweeper: str | None = None

    def __call__(self, node: DictConfig) -> Status:
        """Returns the status of the run, for the sweeper."""
        from hydra.core.hydra_config import HydraConfig

        cfg = self.cfg
        assert cfg is not None
        if self.sweep is not None:
            # A run in a point's folder is an earlier attempt of the same point: each point has its own folder.
            cfg = replace(cfg, run=replace(cfg.run, overwrite=True))
        folder = Path(HydraConfig.get().runtime.output_dir)
        if cfg.launcher.kind in ELSEWHERE:
            name = next((name for name, path in self.points if path == folder), folder.name)
            self.job_runs.append(JobRun(name, folder, cfg))
            return Status.QUEUED
        from collectx.run import execute

        try:
            result = execute(cfg, folder, ["collectx", *self.argv])
        except ConfigError as error:
            # Not raised: Hydra would add text to it.
            self.problems.extend(error.problems)
            return Status.FAILED
        self.results.append(result)
        return result.status
