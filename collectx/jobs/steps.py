"""`launcher=slurm` inside an allocation (`salloc`): runs are steps of the allocation's job, one after another.

bash jobs/step.sh --- srun --jobid=17 --overlap --- task 0: the trainer
                                               \\-- task r: worker r - 1
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from collectx.config.problem import counted
from collectx.errors import ConfigError
from collectx.jobs.rendezvous import JobSpec
from collectx.jobs.status import NamedRun, Outcome, begin_submitted
from collectx.jobs.watcher import Watcher
from collectx.place import place_of
from collectx.place.slurm import commands
from collectx.place.slurm.commands import JobState
from collectx.place.slurm.job import start_step
from collectx.place.slurm.log_watcher import role_command
from collectx.run import Status
from collectx.run.terminal import printing

_POLL_S = 0.1


def run_steps(runs: Sequence[NamedRun], argv: Sequence[str], job: str, results: list[Outcome]) -> None:
    """Runs the runs, one after another, as steps of the allocation `job`. Blocks until all have ended or one was
    interrupted. Appends the outcomes to `results`. Raises `ConfigError` if the allocation is too small; nothing was
    started."""
    if problems := [problem for run in runs for problem in _size_problems(run, job)]:
        raise ConfigError(*dict.fromkeys(problems))
    printing.note(
        f"you are inside the allocation of job {job}, so launcher=slurm runs steps of that job, with its partition, "
        "time and nodes. To submit a job of its own instead: env -u SLURM_JOB_ID collectx run ..."
    )
    for run in runs:
        step = _Step(run, job, argv)
        results += Watcher([(run, job)], step.states, step.cancel, step.cancel, may_leave=False).watch()
        step.join()
        if results[-1].status is Status.INTERRUPTED:
            break


class _Step:
    """One run as a step, which the constructor starts. `Watcher` watches it like a job."""

    def __init__(self, run: NamedRun, job: str, argv: Sequence[str]):
        launcher, run_folder = run.launcher, run.run_folder
        self._job = job
        self._grace_s = run.workers_grace_s
        self._exit_status = run_folder.exit_status(job)
        self._ended_s: float | None = None
        self._is_cancelled = False
        begin_submitted(run, argv)
        JobSpec(run.cfg, tuple(argv)).write(run_folder)
        self._exit_status.unlink(missing_ok=True)
        run_folder.log_begin.write_text("0\n")
        options = {
            **launcher.srun,
            "jobid": job,
            # A shell of `srun --pty` is a step too, which occupies the cores.
            "overlap": True,
            "ntasks": place_of(run.cfg).num_tasks,
            "nodes": launcher.nodes,
            "cpus_per_task": launcher.cpus_per_task,
            "distribution": "block",
            "kill_on_bad_exit": 0,
            "no_kill": run.cfg.collector.on_worker_failure != "raise",
        }
        words = role_command(launcher.python or sys.executable, str(run_folder.path))
        script = run_folder.jobs / "step.sh"
        script.write_text("\n".join(["#!/bin/bash", *commands.body(launcher, words, **options), ""]))
        run_folder.log("job").unlink(missing_ok=True)
        self._step = start_step(lambda: ["bash", str(script)], run_folder.log("job"))

    def states(self, jobs: Iterable[str]) -> Mapping[str, JobState]:
        """Returns the state of the step by the id of its job. Does not block."""
        if self._step.exitcode is not None:
            word = "CANCELLED" if self._is_cancelled else "FAILED" if self._step.exitcode else "COMPLETED"
            return {self._job: JobState(word, True, True)}
        if self._is_cancelled or self._exit_status.exists():
            self._ended_s = self._ended_s or time.monotonic()
        if self._ended_s is not None and time.monotonic() > self._ended_s + self._grace_s:
            self._step.kill()
        return {self._job: JobState("RUNNING", False, True)}

    def join(self) -> None:
        """Waits until all tasks have ended, for at most the grace time, because the end of the allocation would kill
        them."""
        self._ended_s = self._ended_s or time.monotonic()
        while not self.states(())[self._job].is_over:
            time.sleep(_POLL_S)

    def cancel(self, jobs: Iterable[str]) -> None:
        """Ends srun, which ends all tasks."""
        self._is_cancelled = True
        self._step.terminate()


def _size_problems(run: NamedRun, job: str) -> list[str]:
    text = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    cores, tasks, each = sum(commands.per_node(text)), place_of(run.cfg).num_tasks, run.launcher.cpus_per_task or 1
    if not cores or tasks * each <= cores:
        return []
    return [
        f"collector.num_workers={tasks - 1} needs {counted(tasks * each, 'core')}, {each} for each worker and the "
        f"trainer, but the allocation of job {job} has {cores} (SLURM_JOB_CPUS_PER_NODE={text}). Use fewer workers or "
        "a larger allocation, or submit a job of its own: env -u SLURM_JOB_ID collectx run ..."
    ]
