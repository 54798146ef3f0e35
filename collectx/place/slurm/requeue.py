"""Requeues a run's job from inside. SLURM requeues only jobs that it kills, and records a job that ends by itself after
SIGTERM as failed, so an interrupted run requeues its own job.

    SIGTERM: preemption, or `launcher.signal_s` before the time limit
        trainer: completes the batch, writes a checkpoint and `result.json`
        `requeue` -> the job is pending -> its next start resumes from the checkpoint

    a worker's node is lost and the run fails: `requeue`, as above, from the last checkpoint

    the trainer's node is lost: the job continues without the node, if it may lose nodes (--no-kill)
        the first worker that loses its connection: `end_after_loss` -> the job is pending, or cancelled
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from collectx.config.problem import counted
from collectx.config.schema.launcher import JobLauncherConfig, SlurmLauncherConfig, SubmititDelayedLauncherConfig
from collectx.errors import LauncherError
from collectx.place.slurm import commands

# Why a job that makes no progress is not requeued.
IDLE = (
    "it was ended twice before its first batch, by preemption, its time limit or a signal. Let it run longer "
    "(launcher.time, or another partition), then start the run again"
)


def is_requeue_wanted(launcher: JobLauncherConfig, preempts: Callable[[str | None], bool] = commands.preempts) -> bool:
    """Returns `launcher.requeue`; if that is null, whether the user set a time limit or the partition preempts jobs.
    Blocks for SLURM's answer; returns False if SLURM does not answer or does not know the partition."""
    if launcher.requeue is not None:
        return launcher.requeue
    # sbatch reads its variables for what the script leaves open.
    if launcher.sbatch.get("time", launcher.time) is not None or "SBATCH_TIMELIMIT" in os.environ:
        return True
    parts = [launcher.sbatch.get("partition", launcher.partition) or os.environ.get("SBATCH_PARTITION")]
    if isinstance(launcher, SubmititDelayedLauncherConfig):
        resources = (launcher.trainer, launcher.worker)
        parts = [part.sbatch.get("partition", part.partition) or parts[0] for part in resources]
    try:
        return any(preempts(part) for part in dict.fromkeys(parts))
    except LauncherError:
        return False


def num_requeues(environment: Mapping[str, str]) -> int:
    """Returns how often SLURM has restarted this process's job."""
    return int(environment.get("SLURM_RESTART_COUNT", 0))


def job_id(environment: Mapping[str, str]) -> str:
    """Returns the id of this process's job, such as 17, or 17_3 in an array. (17 alone may be the whole array.)"""
    array = environment.get("SLURM_ARRAY_JOB_ID")
    return environment["SLURM_JOB_ID"] if array is None else f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"


def requeue(cfg: SlurmLauncherConfig, environment: Mapping[str, str], idle: Path | None = None) -> str:
    """Requeues this process's job; SLURM then ends the job's steps. Returns why the job is not requeued; "" if it is.
    Blocks for at most two commands. `idle` is the file that notes that the job delivered no batch (`idle_note`); None
    if it did."""
    job = job_id(environment)
    if not cfg.requeue:
        return f"job {job} is not requeued (launcher.requeue=false)"
    if num_requeues(environment) >= cfg.max_requeues:
        times = f"{counted(cfg.max_requeues, 'time')} (launcher.max_requeues={cfg.max_requeues})"
        return f"job {job} is not requeued: it was already requeued {times}"
    try:
        state = commands.states([job]).get(job)
        # A cancelled job, or one at its time limit, would be requeued as well.
        if state is None or state.word != "RUNNING":
            return f"SLURM is ending job {job}" if state else f"SLURM no longer knows job {job}"
        if idle is not None:
            if idle.exists():
                return f"job {job} is not requeued: {IDLE}"
            idle.touch()
        commands.requeue(job)
    except LauncherError as error:
        return f"job {job} is not requeued: {error}"
    return ""


def end_after_loss(node: str, cfg: SlurmLauncherConfig, environment: Mapping[str, str]) -> str:
    """Requeues or cancels this process's job if SLURM has removed the trainer's node, `node`, from it. Returns
    "requeued", "cancelled", or "" if the job still has the node or is not running. Blocks for a few commands."""
    job = job_id(environment)
    state = commands.states([job]).get(job)
    if state is None or state.word != "RUNNING" or node in commands.hostnames(state.node):
        return ""
    if requeue(cfg, environment):
        commands.cancel([job])
        return "cancelled"
    return "requeued"
