"""`launcher=submitit`: the trainer runs where it was started, and every worker is a SLURM job that it submits.

    <run>/jobs/worker.sh       the script of all workers: one task of a job array, whose number is the worker's index
    <run>/logs/worker-3.log    what worker 3's job writes, from SLURM's first word on

A worker that is gone is not requeued by SLURM but submitted again by the trainer, which knows whether it is wanted
still: that covers crashes, lost nodes, time limits and preemption alike. Must not know what a worker does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collectx.config import SlurmResources, SubmititLauncherConfig
from collectx.launcher import sbatch, slurm
from collectx.launcher.jobs import JobState


class WorkerArray:
    """The scheduler of one run's workers (`collectx.launcher.jobs.Scheduler`), as tasks of job arrays. Creating it
    writes the script.

    Args:
        cfg: the resources of one worker.
        script: where to write the script.
        logs: the folder of `worker-<index>.log`.
        command: what a worker runs, its index appended.
    """

    def __init__(self, cfg: SubmititLauncherConfig, script: Path, logs: Path, command: Sequence[str]):
        self._script = script
        # SLURM replaces %a; a path may have a % of its own.
        log = f"{str(logs).replace('%', '%%')}/worker-%a.log"
        header = sbatch.header(
            cfg,
            job_name="collectx-worker",
            output=log,
            open_mode="append",
            ntasks=1,
            cpus_per_task=cfg.num_threads,
            no_requeue=True,
        )
        body = sbatch.body(cfg, [*command, '"$SLURM_ARRAY_TASK_ID"'], **cfg.srun)
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text("\n".join(["#!/bin/bash", *header, *body, ""]))

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """One array, whatever the number: SLURM then shows `<job>_<worker>`."""
        job = sbatch.submit([f"--array={','.join(map(str, workers))}", str(self._script)])
        return {worker: f"{job}_{worker}" for worker in workers}

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """What SLURM says; blocks while it is asked."""
        return slurm.states(jobs)

    def cancel(self, jobs: Sequence[str]) -> None:
        """Ends the jobs; blocks while SLURM is told."""
        sbatch.cancel(jobs)


# submitit's names for what SLURM is asked for, and how ours are made of their values.
_SUBMITIT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "timeout_min": ("time", str),
    "mem_gb": ("mem", lambda value: f"{value}G"),
    "gpus_per_node": ("gpus", int),
    "gpus_per_task": ("gpus", int),
}


def slurm_resources(slurm_kwargs: dict[str, Any], num_threads: int) -> SubmititLauncherConfig:
    """What jobs ask for, by submitit's names or sbatch's (see `DistributedCollector`), as this package has it."""
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(SlurmResources)}
    values |= {"exclusive": False, "setup": [], "sbatch": {}}
    for given, value in slurm_kwargs.items():
        name = given.removeprefix("slurm_")
        name, convert = _SUBMITIT.get(name, (name, lambda value: value))
        if name == "additional_parameters":
            values["sbatch"] |= value
        elif name in values:
            values[name] = convert(value)
        else:
            values["sbatch"][name.replace("_", "-")] = value
    return SubmititLauncherConfig(
        kind="submitit",
        hydra_mode=None,
        num_threads=num_threads,
        pin_cores=False,
        python=None,
        queue_timeout_s=3600.0,
        **values,
    )
