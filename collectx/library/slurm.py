"""Workers that are SLURM jobs: submitted by the collector, or by `submitit_delayed_launcher`, which submits a script's
main function and its collector's workers all at once, for clusters where a job cannot submit jobs.

    python script.py                on the login host: submits all jobs and follows the first
      job: python script.py         main() runs; its DistributedCollector(launcher="submitit_delayed") ...
      jobs: one per worker          ... sends the task to these, and they join
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, LauncherError
from collectx.jobs.submitted_workers import PresubmittedJobs, presubmitted_workers, submitted_workers, worker_command
from collectx.library.keywords import Keywords, NetworkKeywords
from collectx.library.submitit import slurm_resources
from collectx.library.values import port_number
from collectx.place import place_of
from collectx.place.launcher import Launcher
from collectx.place.slurm import commands
from collectx.place.slurm.array import JobArray
from collectx.run.folder.events import EventLog
from collectx.run.folder.layout import RunFolder, locked, new_folder
from collectx.user_objects import UserObjects
from collectx.worker.spec import ConfigOverrides

# TorchRL's example of `slurm_kwargs`. Without `slurm_kwargs`, jobs have the defaults of the cluster.
DEFAULT_SLURM_CONF: dict[str, Any] = {
    "timeout_min": 10,
    "slurm_partition": "train",
    "slurm_cpus_per_task": 32,
    "slurm_gpus_per_node": 0,
}

_MIN_PAUSE_S = 1.0
_MAX_PAUSE_S = 10.0


def open_launcher(
    stack: contextlib.ExitStack, cfg: RunConfig, overrides: Sequence[ConfigOverrides], keywords: Keywords
) -> tuple[Launcher | None, Callable[..., None]]:
    """Returns the launcher of workers that are SLURM jobs (None for others) and a function that logs events. Both end
    when `stack` is closed.

    Args:
        overrides: for each worker, what differs from `cfg`.
    """
    if not isinstance(keywords, NetworkKeywords) or not keywords.has_jobs:
        return None, lambda name, **fields: None
    objects = [
        UserObjects.of(each.env or cfg.env, each.policy or cfg.policy, each.hooks, each.user_collector)
        for each in overrides
    ]
    if keywords.has_submitted_jobs:
        presubmitted = PresubmittedJobs.from_environment()
        assert presubmitted is not None
        events = EventLog(presubmitted.files())
        stack.callback(events.close)
        return presubmitted_workers(cfg, presubmitted, objects), events
    if problems := place_of(cfg).missing():
        raise ConfigError(*problems)
    files = new_folder() if keywords.folder is None else RunFolder(keywords.folder)
    stack.enter_context(locked(files, replace=False))
    files.begin()
    events = EventLog(files)
    stack.callback(events.close)
    jobs = submitted_workers(cfg, files, lambda text: events("jobs", message=text), objects)
    return stack.enter_context(jobs), events


def submitit_delayed_launcher(
    num_jobs: int,
    framework: str = "distributed",
    backend: str = "gloo",
    tcpport: int | str | None = None,
    submitit_main_conf: dict[str, Any] | None = None,
    submitit_collection_conf: dict[str, Any] | None = None,
    queue_timeout_s: float = 3600.0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of a script's main function.

    Calling the function submits the script itself as a job, and `num_jobs` jobs for the workers of its
    `DistributedCollector` or `RPCCollector`, made with `launcher="submitit_delayed"`; copies the job's
    output to standard output, and returns None when the job has completed. Inside the job, the call runs the function.
    All jobs are cancelled when the function fails, when a worker's job ends before any worker has joined, or when this
    process is interrupted.

    Args:
        num_jobs: number of workers of the collector.
        framework: "distributed", or "rpc" for an `RPCCollector`.
        backend: `backend` of the collector; ignored for "rpc".
        tcpport: `tcp_port` of the collector.
        submitit_main_conf, submitit_collection_conf: resources of the job of the function and of those of the workers,
            as `slurm_kwargs` of `DistributedCollector`.
        queue_timeout_s: seconds that the function's job and the workers' jobs wait for each other.

    Raises:
        ConfigError: by the decorator: unknown framework; by the call: this machine has no SLURM.
        LauncherError: by the call: SLURM refused a job, or a job failed; the message names its log.
    """
    transports = {"distributed": backend, "rpc": "rpc"}
    if framework not in transports:
        raise ConfigError(f"framework={framework!r}: must be 'distributed' or 'rpc'.")

    def decorate(main: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(main)
        def launch(*args: Any, **kwargs: Any) -> Any:
            if PresubmittedJobs.from_environment() is not None:
                return main(*args, **kwargs)
            if not commands.is_here():
                raise ConfigError("submitit_delayed_launcher: this machine has no sbatch on its PATH.")
            files = new_folder()
            transport, port = transports[framework], port_number(tcpport)
            presubmitted = PresubmittedJobs(str(files.path), num_jobs, transport, port, queue_timeout_s)
            trainer, workers = (
                slurm_resources(conf or {}, 1) for conf in (submitit_main_conf, submitit_collection_conf)
            )
            _submit_and_follow(files, presubmitted, trainer, workers)
            return None

        return launch

    return decorate


def _submit_and_follow(
    files: RunFolder, presubmitted: PresubmittedJobs, trainer: SubmititLauncherConfig, workers: SubmititLauncherConfig
) -> None:
    files.begin()
    files.jobs.mkdir(exist_ok=True)
    script = files.jobs / "trainer.sh"
    script.write_text(_script(trainer, files, presubmitted))
    command = worker_command(files, wait_s=presubmitted.queue_timeout_s)
    array = JobArray(workers, files.jobs / "worker.sh", files.logs, command, files.worker_jobs)
    jobs: list[str] = []
    try:
        jobs.append(commands.submit(script))
        jobs += array.submit(range(presubmitted.num_workers)).values()
        print(f"collectx: job {jobs[0]}, its workers {', '.join(jobs[1:])}; log: {files.log('trainer')}", flush=True)
        _follow(jobs, files)
    finally:
        if jobs:
            commands.cancel(jobs)


def _script(resources: SubmititLauncherConfig, files: RunFolder, presubmitted: PresubmittedJobs) -> str:
    log = str(files.log("trainer")).replace("%", "%%")
    header = commands.header(resources, job_name="collectx", output=log, open_mode="append", ntasks=1, no_requeue=True)
    name, value = presubmitted.as_environment()
    body = commands.body(resources, [sys.executable, "-u", *sys.orig_argv[1:]])
    return "\n".join(["#!/bin/bash", *header, f"export {name}={shlex.quote(value)}", *body, ""])


def _follow(jobs: Sequence[str], files: RunFolder) -> None:
    """Copies the log of the first job, the trainer's, to standard output until the job ends."""
    num_printed, pause_s = 0, _MIN_PAUSE_S
    gone = commands.JobState("GONE", True, True)
    while True:
        states = commands.states(jobs)
        trainer, *others = [states.get(job, gone) for job in jobs]
        text = files.log("trainer").read_bytes() if files.log("trainer").exists() else b""
        print(text[num_printed:].decode(errors="replace"), end="", flush=True)
        pause_s = _MIN_PAUSE_S if len(text) > num_printed else min(1.5 * pause_s, _MAX_PAUSE_S)
        num_printed = len(text)
        if trainer.is_over:
            if trainer.word != "COMPLETED":
                raise LauncherError(f"job {jobs[0]} of the trainer: {trainer}; log: {files.log('trainer')}")
            return
        # Once a worker has joined, the trainer handles the loss of workers.
        has_joined = any(event["event"] == "worker_joined" for event in files.read_events())
        for index, state in enumerate(others):
            if state.is_over and state.word != "COMPLETED" and not has_joined:
                log = files.worker_log(index)
                raise LauncherError(f"job {jobs[1 + index]} of worker {index}: {state}; log: {log}")
        time.sleep(pause_s)
