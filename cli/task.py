"""What Hydra calls once for each run, and what came of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig

from collectx.cli.typed import typed
from collectx.config import ELSEWHERE, RunConfig
from collectx.errors import ConfigError


class Ended(Protocol):
    """How a run ended, and where: `collectx.run.Result` has it."""

    @property
    def status(self) -> Any: ...
    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True)
class JobRun:
    """A run that is a job as a whole.

    Attributes:
        name: what tells it from the other runs of a sweep.
        folder: its run folder, absolute.
    """

    name: str
    folder: Path
    cfg: RunConfig


@dataclass
class Task:
    """A run here is done at once; one that is a job is only noted, so that equal ones become one job array.

    Attributes:
        argv: the command line as typed, for the snapshot.
        results: of the runs done here.
        refused: what only the run itself could find wrong in the configuration; Hydra would add words of its own to an
            exception.
        wanted: runs that are jobs.
        sweep: the folder of a sweep.
        points: of a sweep, each a name and a run folder, those included that need no run.
        left: whether jobs go on when the command ends.
        sweeper: the class of the sweeper, where it is not Hydra's basic one.
    """

    argv: Sequence[str]
    results: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    job_runs: list[JobRun] = field(default_factory=list)
    sweep: Path | None = None
    points: list[tuple[str, Path]] = field(default_factory=list)
    is_detached: bool = False
    sweeper: str | None = None

    def __call__(self, node: DictConfig) -> str:
        from hydra.core.hydra_config import HydraConfig

        cfg, problems = typed(node)
        assert not problems, problems  # all points were checked before the first one started
        if self.sweep is not None:
            # The sweep gives a point no folder that another point's run is in.
            cfg = replace(cfg, run=replace(cfg.run, overwrite=True))
        folder = Path(HydraConfig.get().runtime.output_dir)
        if cfg.launcher.kind in ELSEWHERE:
            name = next((name for name, path in self.points if path == folder), folder.name)
            self.job_runs.append(JobRun(name, folder, cfg))
            return "wanted"
        from collectx.run import execute

        try:
            result = execute(cfg, folder, ["collectx", *self.argv])
        except ConfigError as error:
            self.problems.extend(error.problems)
            return "failed"
        self.results.append(result)
        return str(result.status.value)
