"""Workers that are SLURM jobs, submitted by the collector's constructor, or by `submitit_delayed_launcher` together
with a script's main function.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from collectx.config.convert import out_of_range
from collectx.config.problem import PYTHON
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.jobs.presubmitted import PresubmittedJobs, presubmitted_workers, submit_and_follow
from collectx.jobs.submitted_workers import submitted_workers
from collectx.library.keyword_fields import language_of
from collectx.library.keywords import Keywords, NetworkKeywords
from collectx.library.values import port_number
from collectx.place import place_of
from collectx.place.launcher import Launcher
from collectx.place.slurm import commands
from collectx.place.slurm.submitit import slurm_resources
from collectx.run.folder.events import EventLog
from collectx.run.folder.layout import RunFolder, locked, new_folder
from collectx.user_objects import UserObjects
from collectx.worker.spec import ConfigOverrides

# TorchRL's example of `slurm_kwargs`. Jobs without `slurm_kwargs` get the cluster's defaults.
DEFAULT_SLURM_CONF: dict[str, Any] = {
    "timeout_min": 10,
    "slurm_partition": "train",
    "slurm_cpus_per_task": 32,
    "slurm_gpus_per_node": 0,
}


def open_launcher(
    stack: contextlib.ExitStack, cfg: RunConfig, overrides: Sequence[ConfigOverrides], keywords: Keywords
) -> tuple[Launcher | None, Callable[..., None]]:
    """Returns the launcher of workers that are SLURM jobs, and a function that logs events to their folder. For other
    workers, the launcher is None, and the function does nothing. Closing `stack` ends both. Raises `ConfigError` if
    this machine has no SLURM, or another process uses the folder."""
    if not isinstance(keywords, NetworkKeywords) or not keywords.has_jobs:
        return None, lambda name, **fields: None
    objects = [
        UserObjects.of(each.env or cfg.env, each.policy or cfg.policy, each.hooks, each.user_collector)
        for each in overrides
    ]
    if keywords.has_submitted_jobs:
        presubmitted = PresubmittedJobs.from_environment()
        assert presubmitted is not None
        events = EventLog(presubmitted.run_folder())
        stack.callback(events.close)
        return presubmitted_workers(cfg, presubmitted, objects), events
    if problems := place_of(cfg).missing():
        raise ConfigError(*map(language_of(keywords).words, problems))
    run_folder = new_folder() if keywords.folder is None else RunFolder(keywords.folder)
    stack.enter_context(locked(run_folder, replace=False))
    run_folder.begin()
    events = EventLog(run_folder)
    stack.callback(events.close)
    jobs = submitted_workers(cfg, run_folder, lambda text: events("jobs", message=text), objects)
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
    """Decorates a script's main function, so that a call runs the script and its workers as SLURM jobs.

    The call submits one job for the script, and `num_jobs` jobs for the workers of the collector that the function
    makes: a `DistributedCollector` or `RPCCollector` with `launcher="submitit_delayed"`. It blocks until the script's
    job has ended, copies that job's output to standard output, and returns None. Inside that job, the call runs the
    function. All jobs are cancelled if the function fails, if a worker's job ends before any worker has joined, or if
    this process is interrupted.

    Args:
        num_jobs: number of workers of the collector.
        framework: "distributed", or "rpc" for an `RPCCollector`.
        backend: `backend` of the collector; ignored for "rpc".
        tcpport: `tcp_port` of the collector.
        submitit_main_conf, submitit_collection_conf: resources of the script's job and of each worker's job, like
            `slurm_kwargs` of `DistributedCollector`.
        queue_timeout_s: seconds that the script's job and the worker jobs wait for each other.

    Raises:
        ConfigError: at the decoration, the framework is unknown; at the call, this machine has no SLURM.
        LauncherError: at the call, SLURM refused a job, or a job failed; the message names its log.
    """
    transports = {"distributed": backend, "rpc": "rpc"}
    if framework not in transports:
        raise ConfigError(f"framework={framework!r} {out_of_range(framework, {'choices': [*transports]}, PYTHON)}")

    def decorate(main: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(main)
        def launch(*args: Any, **kwargs: Any) -> Any:
            if PresubmittedJobs.from_environment() is not None:
                return main(*args, **kwargs)
            if not commands.is_here():
                raise ConfigError(
                    "submitit_delayed_launcher needs SLURM, but this machine has no sbatch on its PATH. Run the "
                    "script on a login node."
                )
            run_folder = new_folder()
            transport, port = transports[framework], port_number(tcpport)
            presubmitted = PresubmittedJobs(str(run_folder.path), num_jobs, transport, port, queue_timeout_s)
            trainer, workers = (
                slurm_resources(conf or {}, 1) for conf in (submitit_main_conf, submitit_collection_conf)
            )
            submit_and_follow(run_folder, presubmitted, trainer, workers)
            return None

        return launch

    return decorate
