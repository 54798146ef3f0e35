"""The runs of one command: those of this process are executed one after another, those that are jobs are submitted
together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.utils import JobReturn, run_job
from hydra.types import HydraContext
from omegaconf import DictConfig

from collectx.config.derived import ELSEWHERE
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.jobs.status import Outcome, SubmittedRun
from collectx.run import RunFolder, Status


class Session:
    """Executes the runs of one command, which was typed as `argv`.

    Attributes:
        results: outcomes of the runs that have ended.
        problems: mistakes in the configuration that only the run itself could find.
        is_detached: jobs keep running when the command ends.
    """

    def __init__(self, argv: Sequence[str]):
        self.results: list[Outcome] = []
        self.problems: list[str] = []
        self.is_detached = False
        self._argv = ["collectx", *argv]
        self._jobs: list[SubmittedRun] = []

    def run(self, context: HydraContext, node: DictConfig, cfg: RunConfig, point: str | None = None) -> JobReturn:
        """Makes the run folder with `.hydra`, and executes the run; or adds it to the runs that `submit` submits.
        `point` is its name in a sweep; `node` is the configuration with Hydra's part."""

        def start(_: DictConfig) -> None:
            folder = Path(node.hydra.runtime.output_dir)
            if cfg.launcher.kind in ELSEWHERE:
                self._jobs.append(SubmittedRun(point or folder.name, folder, cfg, hydra_before))
                return
            from collectx.run import execute

            try:
                result = execute(cfg, folder, self._argv)
                self.results.append(Outcome(result.status, result.folder))
            except ConfigError as error:
                # Not raised: Hydra would add text to it.
                self.problems.extend(error.problems)

        hydra = node.hydra
        place = hydra.run.dir if point is None else Path(hydra.sweep.dir, str(hydra.sweep.subdir))
        hydra_before = {path: path.read_bytes() for path in RunFolder(place).hydra.glob("*") if path.is_file()}
        if point is not None:
            if not cfg.run.overwrite:
                # A run in a point's folder is an earlier attempt of the same point: each point has its own folder.
                cfg = replace(cfg, run=replace(cfg.run, resume="auto"))
            return run_job(start, node, "hydra.sweep.dir", "hydra.sweep.subdir", hydra_context=context)
        return run_job(start, node, "hydra.run.dir", None, hydra_context=context)

    def submit(self, sweep: Path | None = None) -> None:
        """Submits the runs that are jobs, and watches them; see `slurm.run_jobs`."""
        if self._jobs:
            from collectx.jobs import submit as slurm

            jobs, self._jobs = self._jobs, []
            self.is_detached = slurm.run_jobs(jobs, self._argv, sweep, self.results)

    @property
    def is_interrupted(self) -> bool:
        return any(run.status is Status.INTERRUPTED for run in self.results)
