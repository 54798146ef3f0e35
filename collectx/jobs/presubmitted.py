"""Workers whose jobs are submitted together with their trainer's job (`collectx.submitit_delayed_launcher`), for
clusters where a job cannot submit jobs.

    python script.py                `submit_and_follow`: submits all jobs and follows the first
      job: python script.py         `presubmitted_workers`: the script's collector writes `jobs/task.json`
      jobs: one per worker          `entry.py --wait`: these wait for that file, and join
"""

from __future__ import annotations

import codecs
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import LauncherError
from collectx.jobs.rendezvous import JobSpec, announce_trainer
from collectx.jobs.submitted_workers import worker_command
from collectx.place.launcher import Launcher
from collectx.place.slurm import commands
from collectx.place.slurm.array import JobArray
from collectx.run.folder.layout import RunFolder
from collectx.user_objects import UserObjects

_VARIABLE = "COLLECTX_PRESUBMITTED_JOBS"
_MIN_PAUSE_S = 1.0
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True)
class PresubmittedJobs:
    """What the trainer's job must know about the submitted worker jobs; passed in an environment variable. The workers
    wait for `jobs/task.json` in the run folder `folder`; workers and trainer wait `queue_timeout_s` for each other."""

    folder: str
    num_workers: int
    backend: str
    tcp_port: int | None
    queue_timeout_s: float

    def as_environment(self) -> tuple[str, str]:
        """Returns name and value of the environment variable."""
        return _VARIABLE, json.dumps(vars(self))

    @classmethod
    def from_environment(cls) -> PresubmittedJobs | None:
        """Returns the content of the environment variable; None if it is not set."""
        text = os.environ.get(_VARIABLE)
        return None if text is None else cls(**json.loads(text))

    def run_folder(self) -> RunFolder:
        return RunFolder(self.folder)


def presubmitted_workers(cfg: RunConfig, jobs: PresubmittedJobs, objects: Sequence[UserObjects]) -> Launcher:
    """Writes `jobs/task.json` for the waiting workers; returns their launcher, which replaces no worker."""
    run_folder, token = jobs.run_folder(), secrets.token_hex(8)
    JobSpec(cfg, token=token).write(run_folder, objects)
    return Launcher(
        run_folder.worker_log,
        lambda endpoint: announce_trainer(run_folder, endpoint, token),
        ("queue_timeout_s", jobs.queue_timeout_s),
    )


def submit_and_follow(
    run_folder: RunFolder,
    presubmitted: PresubmittedJobs,
    trainer: SubmititLauncherConfig,
    workers: SubmititLauncherConfig,
) -> None:
    """Submits the trainer's job, which runs this process's script, and the worker jobs. Copies the trainer's output to
    standard output; blocks until the trainer's job has completed. Cancels all jobs at the end. `trainer` and `workers`
    are the resources of the trainer's job, and of each worker's. Raises `LauncherError` if SLURM refuses a job, if
    the trainer's job fails, or if a worker's job fails before any worker has joined."""
    run_folder.begin()
    run_folder.jobs.mkdir(exist_ok=True)
    script = run_folder.jobs / "trainer.sh"
    script.write_text(_script(trainer, run_folder, presubmitted))
    command = worker_command(run_folder, wait_s=presubmitted.queue_timeout_s)
    array = JobArray(workers, run_folder, command)
    jobs: list[str] = []
    try:
        jobs.append(commands.submit(script))
        jobs += array.submit(range(presubmitted.num_workers)).values()
        print(
            f"collectx: job {jobs[0]}, its workers {', '.join(jobs[1:])}; log: {run_folder.log('trainer')}", flush=True
        )
        _follow(jobs, run_folder)
    finally:
        if jobs:
            commands.cancel(jobs)


def _script(resources: SubmititLauncherConfig, run_folder: RunFolder, presubmitted: PresubmittedJobs) -> str:
    log = str(run_folder.log("trainer")).replace("%", "%%")
    header = commands.header(resources, job_name="collectx", output=log, open_mode="append", ntasks=1, no_requeue=True)
    name, value = presubmitted.as_environment()
    body = commands.body(resources, [sys.executable, "-u", *sys.orig_argv[1:]])
    return "\n".join(["#!/bin/bash", *header, f"export {name}={shlex.quote(value)}", *body, ""])


def _follow(jobs: Sequence[str], run_folder: RunFolder) -> None:
    """Copies the trainer's log to standard output until the trainer's job, the first one, ends."""
    log, num_read, pause_s = run_folder.log("trainer"), 0, _MIN_PAUSE_S
    # A read may end within a character.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    gone = commands.JobState("GONE", True, True)
    while True:
        states = commands.states(jobs)
        trainer, *others = [states.get(job, gone) for job in jobs]
        text = _read_from(log, num_read)
        num_read += len(text)
        print(decoder.decode(text, final=trainer.is_over), end="", flush=True)
        pause_s = _MIN_PAUSE_S if text else min(1.5 * pause_s, _MAX_PAUSE_S)
        if trainer.is_over:
            if trainer.word != "COMPLETED":
                raise LauncherError(f"the trainer's job {jobs[0]} ended as {trainer}. Its log: {log}")
            return
        # Once a worker has joined, the trainer handles lost workers.
        has_joined = any(event["event"] == "worker_joined" for event in run_folder.read_events())
        for index, state in enumerate(others):
            if state.is_over and state.word != "COMPLETED" and not has_joined:
                path = run_folder.worker_log(index)
                raise LauncherError(f"the job {jobs[1 + index]} of worker {index} ended as {state}. Its log: {path}")
        time.sleep(pause_s)


def _read_from(path: Path, position: int) -> bytes:
    """Returns what a file contains from `position` on; nothing if the file does not exist."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            return file.read()
    except FileNotFoundError:
        return b""
