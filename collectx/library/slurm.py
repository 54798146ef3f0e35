"""Workers that are SLURM jobs, submitted by the collector's constructor, or by `submitit_delayed_launcher` together
with a script's main function.

Also translates submitit's parameters of SLURM jobs into the launcher's configuration.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collectx.config.check import out_of_range
from collectx.config.problem import PYTHON
from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.jobs.worker_jobs import PresubmittedJobs, presubmitted_workers, submit_and_follow, submitted_workers
from collectx.library.keywords import Keywords, NetworkKeywords
from collectx.library.values import port_number
from collectx.place import place_of
from collectx.place.launcher import Launcher
from collectx.place.slurm import commands
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
        raise ConfigError(*problems)
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


# Parameters about how submitit starts and watches jobs.
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
    """Returns the launcher configuration for parameters of submitit's `AutoExecutor`, which `DistributedCollector`
    takes. submitit itself checks them. Raises `ConfigError` if submitit does not know a parameter, or collectx sets it
    itself."""
    requested = _translated(slurm_kwargs)
    # As passed: with or without the prefix, and `tasks_per_node` for `ntasks_per_node`.
    typed = {name: key for key in slurm_kwargs for name in _UNSUPPORTED if name.endswith(key.removeprefix("slurm_"))}
    wrong = [
        f"slurm_kwargs[{typed.get(name, name)!r}]={requested[name]!r} cannot be used: each worker is one task on one "
        "node, which collectx starts and watches itself. Leave it out."
        for name in _UNSUPPORTED
        if requested.get(name) not in (None, 1)
    ]
    if wrong:
        raise ConfigError(*wrong)
    launcher = SubmititLauncherConfig(kind="submitit", num_threads=num_threads)
    for name, value in requested.items():
        if name in _UNSUPPORTED:
            continue
        if name in ("gpus_per_node", "num_gpus"):
            launcher.gpus = value
        elif name == "srun_args":
            options = (word.removeprefix("--").partition("=") for word in value)
            launcher.srun = {option: setting if has_value else True for option, has_value, setting in options}
        elif name == "additional_parameters":
            launcher.sbatch |= value
        elif name in vars(launcher) and not (name == "exclusive" and isinstance(value, str)):
            setattr(launcher, name, str(value) if name == "time" else value)
        else:
            launcher.sbatch[name.replace("_", "-")] = value
    return launcher


def _translated(slurm_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters that are not None by sbatch's names, with `_` for `-`."""
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
            raise ConfigError(f"slurm_kwargs cannot be used: {error}") from error
    return {name: value for name, value in executor.parameters.items() if value is not None}
