"""Sweepers that choose values by the results of earlier points, such as `hydra/sweeper=optuna`; Hydra's basic sweeper
only enumerates. They read each point's objective as the return value of its job.

Called by the command line and by the launcher of points.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import CollectxError
from collectx.run import RunFolder, Status

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class Stopped(KeyboardInterrupt):
    """The user interrupted a point, so no other point starts. Not an `Exception`, which a sweeper would count as a
    failed point."""


class NoObjective(CollectxError):
    """A point failed, or its result has no objective; the sweeper decides whether to continue."""


def is_basic(node: DictConfig) -> bool:
    """Whether the sweeper of a composed configuration only enumerates."""
    return node.hydra.sweeper._target_ == _BASIC


def objective_of(node: DictConfig) -> str | None:
    """`sweep.objective`; None if it is not set."""
    return OmegaConf.select(node, "sweep.objective")


def sample(overrides: Sequence[Override]) -> list[str]:
    """The overrides of one point of the search space: the first value of each list, the middle of each interval."""
    return [_first(override) if override.is_sweep_override() else str(override.input_line) for override in overrides]


def problems(node: DictConfig, cfg: RunConfig) -> list[str]:
    """Reasons why a sweeper cannot get the objective of points of this configuration."""
    messages = []
    if objective_of(node) is None:
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
    is_completed = result["status"] == Status.COMPLETED
    if is_completed and value is not None:
        job.status, job.return_value = JobStatus.COMPLETED, float(value)
        return
    job.status = JobStatus.FAILED
    if is_completed:
        job.return_value = NoObjective(
            f"{name}: its result has no {objective} (sweep.objective={objective}): {_HINTS.get(objective, '')}"
        )
    else:
        job.return_value = NoObjective(f"{name}: {result['status']}: {result['exit_reason']}")


_HINTS = {
    "mean_return": "no episode has ended: raise collector.total_frames.",
    "frames_per_s": "it takes two batches: raise collector.total_frames.",
    "start_s": "no batch was delivered.",
}


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
