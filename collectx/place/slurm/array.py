"""`launcher=submitit`: the trainer runs where it was started, and every worker is a SLURM job that it submits.

    <run>/jobs/worker.sh     the script of all workers: one task of a job array; its argument is the first worker
    <run>/jobs/workers.txt   the job of each worker, and the worker's index
    <run>/jobs/ended.17_3    SLURM ended job 17_3
    <run>/logs/worker-3.log  output of SLURM and of worker 3's job

SLURM does not requeue worker jobs: a requeued job would look for a trainer that has already replaced its worker. The
trainer submits a new job instead: with `launcher.requeue` after preemption and at the time limit, with
`collector.on_worker_failure=restart` after any loss.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.errors import LauncherError
from collectx.job_files import JobFiles
from collectx.place.slurm import commands


class JobArray:
    """Submits the workers of one run as tasks of job arrays. Every call may block for seconds, and raises
    `LauncherError` if SLURM refuses.

    Args:
        cfg: the resources of one worker.
        files: the run folder. The constructor writes the script of the workers into it.
        command: the command of a worker, without its index.
    """

    def __init__(self, cfg: SubmititLauncherConfig, files: JobFiles, command: Sequence[str]):
        self._files = files
        self._largest: int | None = None
        begin = [
            "worker=$((SLURM_ARRAY_TASK_ID + $1))",
            f"run={shlex.quote(str(files.path))}",
            f'exec >>"{JobFiles(Path("$run")).worker_log("$worker")}" 2>&1 || exit 1',
        ]
        body = commands.body(cfg, [*commands.WITHOUT_REQUESTS, *command, '"$worker"'], **cfg.srun)
        files.jobs.mkdir(parents=True, exist_ok=True)
        files.worker_script.write_text("\n".join(["#!/bin/bash", *worker_header(cfg, files), *begin, *body, ""]))
        files.worker_jobs.unlink(missing_ok=True)

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """Submits all of these workers, or none; returns the job of each worker, `<array>_<index>`. The index is the
        worker's, less a multiple of the largest array that SLURM allows."""
        self._largest = self._largest or commands.largest_array()
        jobs: dict[int, str] = {}
        try:
            for first, option in array_options(workers, self._largest):
                job = commands.submit(self._files.worker_script, option, arguments=[str(first)])
                jobs |= {worker: f"{job}_{worker - first}" for worker in workers if 0 <= worker - first < self._largest}
        except LauncherError as error:
            if not jobs:
                raise
            with suppress(LauncherError):
                commands.cancel(list(jobs.values()))
            reason = str(error).removesuffix(".")
            raise LauncherError(
                f"only {len(jobs)} of {len(workers)} workers could be submitted: {reason}. collectx cancelled "
                "their jobs."
            ) from error
        with open(self._files.worker_jobs, "a") as file:
            file.writelines(f"{job} {worker}\n" for worker, job in jobs.items())
        return jobs

    def is_ended_by_slurm(self, job: str, state: commands.JobState) -> bool:
        """Whether SLURM ended a job that had not failed: by preemption, or at its time limit."""
        return state.word in ("PREEMPTED", "TIMEOUT") or self._files.note_of_end(job).exists()

    states = staticmethod(commands.states)
    cancel = staticmethod(commands.cancel)


def array_options(workers: Sequence[int], largest: int) -> Iterator[tuple[int, str]]:
    """Yields, for each array, the worker of index 0 and sbatch's option `--array`. SLURM's indices are below
    `largest`."""
    for first, group in itertools.groupby(sorted(workers), lambda worker: worker // largest * largest):
        yield first, f"--array={','.join(str(worker - first) for worker in group)}"


def worker_header(cfg: SubmititLauncherConfig, files: JobFiles) -> list[str]:
    """Returns the `#SBATCH` lines of the workers' script, see `JobArray`."""
    return commands.header(
        cfg,
        job_name=f"{files.path.name}-worker",
        output="/dev/null",  # the script redirects its output to the worker's log
        ntasks=1,
        cpus_per_task=cfg.num_threads,
        no_requeue=True,
    )
