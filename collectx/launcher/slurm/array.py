"""`launcher=submitit`: the trainer runs where it was started, and every worker is a SLURM job that it submits.

    <run>/jobs/worker.sh       the script of all workers: one task of a job array, whose number is the worker's index
    <run>/jobs/ended.17_3      SLURM has ended job 17_3
    <run>/logs/worker-3.log    output of SLURM and of worker 3's job

SLURM does not requeue a worker's job: a second life of the same job would look for a trainer that has replaced the
worker. The trainer submits a new job: with `launcher.requeue` after preemption and at the time limit, and with
`collector.on_worker_failure=restart` after any loss.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectx.config.schema.launcher import SlurmResources, SubmititLauncherConfig
from collectx.errors import ConfigError
from collectx.launcher.slurm import commands


class JobArray:
    """The workers of one run as tasks of job arrays. Every call may block for seconds. The constructor writes the
    script.

    Args:
        cfg: the resources of one worker.
        script: where to write the script.
        logs: the folder of `worker-<index>.log`.
        command: of a worker, without its index.
        record: a file for the job ids, one per line, for `collectx status`.
    """

    def __init__(self, cfg: SubmititLauncherConfig, script: Path, logs: Path, command: Sequence[str], record: Path):
        self._script = script
        self._record = record
        header = worker_header(cfg, logs)
        body = commands.body(cfg, [*command, '"$SLURM_ARRAY_TASK_ID"'], **cfg.srun)
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("\n".join(["#!/bin/bash", *header, *body, ""]))
        record.unlink(missing_ok=True)

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """Submits one array, even for one worker: SLURM then shows `<job>_<worker>`."""
        job = commands.submit([f"--array={','.join(map(str, workers))}", str(self._script)])
        jobs = {worker: f"{job}_{worker}" for worker in workers}
        with open(self._record, "a") as file:
            file.writelines(f"{each}\n" for each in jobs.values())
        return jobs

    def is_ended_by_slurm(self, job: str, state: commands.JobState) -> bool:
        """Whether SLURM has ended a job that had not failed: it was preempted, or at its time limit."""
        return state.word in ("PREEMPTED", "TIMEOUT") or note_of_end(self._script.parent, job).exists()

    states = staticmethod(commands.states)
    cancel = staticmethod(commands.cancel)


def worker_header(cfg: SubmititLauncherConfig, logs: Path) -> list[str]:
    """The `#SBATCH` lines of the workers' script, see `JobArray`."""
    # SLURM replaces %a; other % in the path are escaped.
    log = f"{str(logs).replace('%', '%%')}/worker-%a.log"
    return commands.header(
        cfg,
        job_name=f"{logs.parent.name}-worker",
        output=log,
        open_mode="append",
        ntasks=1,
        cpus_per_task=cfg.num_threads,
        no_requeue=True,
    )


def note_of_end(jobs: Path, job: str) -> Path:
    """The file that a worker's process leaves in the folder `jobs` where SLURM ends its job (SIGTERM). A process that
    ends before the job is killed is a failed job for SLURM."""
    return jobs / f"ended.{job}"


# submitit's parameters about how it starts and watches jobs.
_UNSUPPORTED = (
    "array_parallelism",
    "nodes",
    "ntasks_per_node",
    "signal_delay_s",
    "stderr_to_stdout",
    "teardown",
    "use_srun",
)


def slurm_resources(slurm_kwargs: dict[str, Any], num_threads: int) -> SubmititLauncherConfig:
    """The launcher configuration of parameters of submitit's `AutoExecutor` (see `DistributedCollector`), which
    submitit checks and translates.

    Raises:
        ConfigError: submitit does not know a parameter, or it is one that `collectx` decides.
    """
    requested = _translated(slurm_kwargs)
    wrong = [
        f"slurm_kwargs: {name}={requested[name]!r}: a worker is one task on one node, which collectx starts and "
        "watches itself: leave it out."
        for name in _UNSUPPORTED
        if requested.get(name) not in (None, 1)
    ]
    if wrong:
        raise ConfigError(wrong)
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(SlurmResources)}
    values |= {"exclusive": False, "setup": [], "sbatch": {}, "srun": {}}
    for name, value in requested.items():
        if name in _UNSUPPORTED:
            continue
        if name in ("gpus_per_node", "num_gpus"):
            values["gpus"] = value
        elif name == "srun_args":
            options = (word.removeprefix("--").partition("=") for word in value)
            values["srun"] = {option: setting if has_value else True for option, has_value, setting in options}
        elif name == "additional_parameters":
            values["sbatch"] |= value
        elif name in values and not (name == "exclusive" and isinstance(value, str)):
            values[name] = str(value) if name == "time" else value
        else:
            values["sbatch"][name.replace("_", "-")] = value
    return SubmititLauncherConfig(
        kind="submitit",
        num_threads=num_threads,
        pin_cores=False,
        python=None,
        requeue=None,
        max_requeues=20,
        queue_timeout_s=3600.0,
        **values,
    )


def _translated(slurm_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The parameters under sbatch's names, with `_` for `-`, without those that are None."""
    if not slurm_kwargs:
        return {}
    import submitit

    # submitit warns about names without the prefix `slurm_`, which it accepts.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            executor = submitit.AutoExecutor(Path(), cluster="slurm")
            executor.update_parameters(**slurm_kwargs)
        except (NameError, ValueError, TypeError, AssertionError, RuntimeError) as error:
            raise ConfigError([f"slurm_kwargs: {error}"]) from error
    return {name: value for name, value in executor.parameters.items() if value is not None}
