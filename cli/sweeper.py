"""Sweepers that choose values by the results of earlier points, such as `hydra/sweeper=optuna`; Hydra's basic sweeper
only enumerates. They read each point's objective as the return value of its job.

Called by sweep.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from collectx.cli.compose import overrides_of
from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import CollectxError
from collectx.run import RunFolder, Status

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
# The target in conf/hydra/launcher/points.yaml. Hydra imports plugins from this package only, where an editable install
# cannot have a module, so `sweep_with` adds the class.
_ADDRESS = "hydra_plugins.collectx.PointLauncher"
_HINTS = {
    "mean_return": "no episode has ended: raise collector.total_frames.",
    "frames_per_s": "it takes two batches: raise collector.total_frames.",
    "start_s": "no batch was delivered.",
}


class Stopped(KeyboardInterrupt):
    """The user interrupted a point, so no other point starts. Not an `Exception`, which a sweeper would count as a
    failed point."""


class NoObjective(CollectxError):
    """A point failed, or its result has no objective; the sweeper decides whether to continue."""


class PointLauncher(Launcher):
    """Hydra's launcher: passes the points of a sweeper to the task function, which returns their jobs."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._run_points = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self._run_points(job_overrides)


def sweep_with(master: DictConfig, context: HydraContext, run_points: TaskFunction) -> None:
    """Sweeps with the sweeper of a composed configuration, which calls `run_points(overrides)` with the overrides of
    each of a few points, and reads the jobs that it returns."""
    Plugins.instance().class_name_to_class[_ADDRESS] = PointLauncher
    sweeper = Plugins.instance().instantiate_sweeper(config=master, hydra_context=context, task_function=run_points)
    sweeper.sweep(arguments=overrides_of(master))


def is_basic(node: DictConfig) -> bool:
    """Whether the sweeper of a composed configuration only enumerates."""
    return node.hydra.sweeper._target_ == _BASIC


def sample(overrides: Sequence[Override]) -> list[str]:
    """The overrides of one point of the search space: the first value of each list, the middle of each interval."""
    return [_first(override) if override.is_sweep_override() else str(override.input_line) for override in overrides]


def problems(node: DictConfig, cfg: RunConfig) -> list[str]:
    """Reasons why a sweeper cannot get the objective of points of this configuration."""
    messages = []
    if OmegaConf.select(node, "sweep.objective") is None:
        messages.append("sweep.objective is not set: set sweep.objective=mean_return.")
    if isinstance(cfg.launcher, SlurmLauncherConfig) and cfg.launcher.wait is False:
        messages.append(
            f"launcher.wait=false: {node.hydra.sweeper._target_} chooses values by the results of earlier points: use "
            "launcher.wait=true."
        )
    return messages


def set_return_value(job: JobReturn, name: str, folder: RunFolder, objective: str) -> None:
    """Sets the return value that the sweeper reads: the objective, or a failure."""
    if job.status is JobStatus.FAILED:
        return
    result = folder.read_result() or {"status": Status.FAILED, "exit_reason": "it left no result"}
    value = result.get(objective)
    if result["status"] != Status.COMPLETED:
        reason = f"{result['status']}: {result['exit_reason']}"
    elif value is None:
        hint = _HINTS.get(objective, "")
        reason = f"its result has no {objective} (sweep.objective={objective}): {hint}"
    else:
        job.status, job.return_value = JobStatus.COMPLETED, float(value)
        return
    job.status, job.return_value = JobStatus.FAILED, NoObjective(f"{name}: {reason}")


def _first(override: Override) -> str:
    value = override.value()
    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        middle = (value.start + value.end) / 2
        is_integer = isinstance(value.start, int) and isinstance(value.end, int)
        text = str(int(middle) if is_integer else middle)
    else:
        text = next(iter(override.sweep_string_iterator()))
    return f"{override.get_key_element()}={text}"
