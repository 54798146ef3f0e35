"""The task that Hydra calls: runs one configuration in the process that Hydra's launcher has chosen, or submits it if
`launcher` makes it a job.

    Hydra --launcher=collectx--> PointRunner (sweep.py) --> Task.execute, in this process
          --any other----------> Task.__call__, perhaps in another process
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from collectx import hydra_state
from collectx.cli.compose import Composed, is_enumerated, typed
from collectx.config.schema.run import OF_EVALUATION, RunConfig
from collectx.errors import CollectxError, ConfigError
from collectx.jobs.status import NamedRun, Outcome
from collectx.place import place_of
from collectx.run import RunFolder, Status, preflight
from collectx.run.after import foreign_code
from collectx.run.terminal import printing

if TYPE_CHECKING:
    from collectx.run.terminal.display import Point

_HINTS = {
    "mean_return": "no episode ended. Raise collector.total_frames.",
    "frames_per_s": "at least two batches are needed. Raise collector.total_frames.",
    "start_s": "no batch was delivered.",
}


class PointFailed(CollectxError):
    """A point of a sweep failed, or its result lacks the objective; Hydra's sweeper decides whether to continue."""


class SweepStopped(KeyboardInterrupt):
    """The user interrupted a point, so no other one starts. No `Exception`, which would be a failed point."""


class Task:
    """Runs what the command line `argv` asks for. It pickles as its command line, which the other process
    composes again.

    Attributes:
        cfg: the configuration of the only run of the command, composed and checked; None for a sweep.
        checked: the points that the command has composed and checked, by their overrides.
        outcomes: the outcome of each run that has ended, in this process or as a job.
        points: names and run folders of the points that were begun or completed, by `hydra/launcher=collectx`.
        problems: mistakes in the configuration that only the run itself could find.
        is_detached: whether jobs keep running when the command ends.
        point: the next run as a point of a sweep; None: the only run of the command.
        names: the names of the points that `checked` contains, by their overrides.
    """

    def __init__(
        self, argv: Sequence[str], is_in_command: bool = True, names: Mapping[tuple[str, ...], str] | None = None
    ):
        self.argv = list(argv)
        self.cfg: RunConfig | None = None
        self.checked: dict[tuple[str, ...], Composed] = {}
        self.outcomes: list[Outcome] = []
        self.points: list[tuple[str, Path]] = []
        self.problems: list[str] = []
        self.is_detached = False
        self.point: Point | None = None
        self.is_signalled = False
        self.names = names or {}
        self._is_in_command = is_in_command

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (self.argv, False, self.names)

    @property
    def is_interrupted(self) -> bool:
        return self.is_signalled or any(run.status is Status.INTERRUPTED for run in self.outcomes)

    def interrupt(self, signum: int, frame: object) -> None:
        """Handles SIGINT between the runs: Python ignores an exception that it raises within a finalizer."""
        self.is_signalled = True
        raise KeyboardInterrupt

    def __call__(self, node: DictConfig) -> float | list[float] | None:
        """Runs a point of a sweep with one of Hydra's launchers, and returns its objective; see `objective`.

        Raises:
            ConfigError: the configuration is wrong.
            PointFailed: the run failed, or lacks the objective by which the sweeper chooses points.
            SweepStopped: the run was interrupted, in the process of the command.
        """
        from collectx.run.terminal.display import Point

        hydra: Any = HydraConfig.get()
        words = tuple(hydra.overrides.task)
        name = self.names.get(words) or ",".join(word.lstrip("+") for word in words if word not in self.argv)
        run = run_of(node, hydra, name)
        count, width = len(self.names) or None, max(map(len, self.names.values()), default=0)
        self.point = Point(run.name, hydra.job.num + 1, count, width, is_alone=self._is_in_command)
        if not run.cfg.run.trust:
            foreign_code.check_checkpoints(run.run_folder)
        self.execute([run])
        if self.is_interrupted and self._is_in_command:
            raise SweepStopped
        return objective(run.run_folder, run.name, objectives(node), hydra)

    def alone(self, node: DictConfig) -> None:
        """Runs `cfg`, the only run of a command, in the folder that Hydra made. Errors are kept, as Hydra would add
        text to them."""
        assert self.cfg is not None
        folder = Path(HydraConfig.get().runtime.output_dir)
        try:
            self.execute([NamedRun(folder.name, folder, self.cfg, hydra_state.current())])
        except ConfigError as error:
            self.problems.extend(error.problems)

    def execute(self, runs: Sequence[NamedRun], sweep: Path | None = None) -> None:
        """Executes runs in this process, or submits those that are jobs together and watches them; blocks until they
        have ended. `sweep` is the folder of the sweep that they belong to."""
        jobs = [run for run in runs if place_of(run.cfg).is_job]
        if jobs:
            from collectx.jobs.submit import run_jobs

            self.is_detached = run_jobs(jobs, self.argv, sweep, self.outcomes)
        from collectx.run import execute

        if len(jobs) < len(runs):
            printing.print_notes()
        for run in runs:
            if run not in jobs:
                open_launcher = None
                if place_of(run.cfg).has_worker_jobs:
                    from collectx.jobs.worker_jobs import submitted_workers

                    open_launcher = partial(submitted_workers, run.cfg, run.run_folder)
                result = execute(run.cfg, run.folder, self.argv, open_launcher, self.point)
                self.outcomes.append(Outcome(result.status, result.folder))


def run_of(node: DictConfig, hydra: Any, name: str | None = None) -> NamedRun:
    """Returns the run that one of Hydra's jobs is to start, in the folder that Hydra made. `name` is the name of the
    point; None: the folder's name."""
    cfg, problems, _ = typed(node, hydra)
    if problems := [*problems, *preflight.rule_problems(cfg)]:
        raise ConfigError(*problems)
    if hydra.mode is RunMode.MULTIRUN and not cfg.run.overwrite and cfg.run.resume is None:
        # Each point uses a separate folder, so a run in it is an earlier attempt of the same point.
        cfg = replace(cfg, run=replace(cfg.run, resume="auto"))
    folder = Path(hydra.runtime.output_dir)
    return NamedRun(name or folder.name, folder, cfg, hydra_state.current())


def objectives(node: DictConfig) -> list[str]:
    """Returns the entries of `result.json` that `sweep.objective` names; the first one ranks the points."""
    value = OmegaConf.select(node, "sweep.objective")
    return [*value] if OmegaConf.is_list(value) else [str(value)]


def objective(run_folder: RunFolder, name: str, keys: Sequence[str], hydra: Any) -> float | list[float] | None:
    """Returns what a point's job returns to the sweeper: the entries of the result that `keys` name, a number for one
    key, a list for several; None if one is missing and the sweeper only enumerates points. Raises `PointFailed` if the
    run has failed, or an entry is missing that a sweeper which searches needs."""
    result = run_folder.read_result() or {"status": Status.FAILED, "exit_reason": "the run wrote no result"}
    advice = " To continue without it, set hydra.sweeper.max_failure_rate=1." * ("max_failure_rate" in hydra.sweeper)
    if result["status"] != Status.COMPLETED:
        raise PointFailed(f"{name}: {result['status']}: {result['exit_reason']}.{advice}")
    values = {key: result.get(key) for key in keys}
    missing = [key for key, value in values.items() if value is None]
    if missing and not is_enumerated(hydra):
        hint = _HINTS.get(missing[0], "env.metrics has no value yet.")
        if missing[0].startswith(OF_EVALUATION):
            hint = "no evaluation ended. Lower eval.every_batches."
        lacks = f"the result has no {missing[0]}, which sweep.objective needs"
        raise PointFailed(f"{name}: {lacks}: {hint}{advice}")
    if missing:
        return None
    numbers = [float(value) for value in values.values() if value is not None]
    return numbers if len(numbers) > 1 else numbers[0]
