"""`launcher=submitit`: the trainer runs where it was started, and every worker is a SLURM job that it submits.

    <run>/jobs/worker.sh       the script of all workers: one task of a job array, whose number is the worker's index
    <run>/jobs/ended.17_3      SLURM has ended job 17_3
    <run>/logs/worker-3.log    output of SLURM and of worker 3's job

SLURM does not requeue a worker's job: a second life of the same job would look for a trainer that has replaced the
worker. The trainer submits a new job: with `launcher.requeue` after preemption and at the time limit, and with
`collector.on_worker_failure=restart` after any loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectx.config.schema.launcher import SubmititLauncherConfig
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
