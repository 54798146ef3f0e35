"""Launchers of remote collectors: local processes, SLURM jobs or Ray actors. Runs in the trainer's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.launcher.base import Launcher
from collectx.launcher.slurm.array import slurm_resources
from collectx.library.keywords import Nested, RayRemote, Remote
from collectx.run import RunFolder, preflight
from collectx.run.events import EventLog
from collectx.run.folder import locked, new_folder
from collectx.run.submitted_workers import PresubmittedJobs, presubmitted_workers, submitted_workers
from collectx.user_objects import UserObjects


def choose_launcher(cfg: RunConfig, remote: Nested) -> None:
    """Sets `cfg.launcher` to the launcher that the keywords choose."""
    if isinstance(remote, RayRemote):
        cfg.launcher = remote.launcher_config(cfg.launcher.num_threads, cfg.collector.num_workers)
    if not isinstance(remote, Remote):
        return
    if remote.launcher == "submitit":
        cfg.launcher = slurm_resources(remote.slurm_kwargs or {}, cfg.launcher.num_threads)
    elif remote.launcher == "submitit_delayed":
        cfg.launcher = _Presubmitted(**vars(slurm_resources({}, cfg.launcher.num_threads)))
        cfg.backend.port = _check_presubmitted(cfg, remote.tcp_port)


class _Presubmitted(SubmititLauncherConfig):
    """Workers whose jobs are submitted already, see `collectx.run.submitted_workers.PresubmittedJobs`."""


def _check_presubmitted(cfg: RunConfig, tcp_port: int | None) -> int | None:
    """Checks that the submitted jobs match `cfg`; returns the port on which the trainer listens.

    Raises:
        ConfigError: they do not match, or no jobs were submitted.
    """
    jobs = PresubmittedJobs.from_environment()
    if jobs is None:
        raise ConfigError(
            [
                "launcher='submitit_delayed': no jobs were submitted for this process: decorate the main function with "
                "collectx.submitit_delayed_launcher, or use launcher='submitit'."
            ]
        )
    problems = []
    if jobs.num_workers != cfg.collector.num_workers:
        problems.append(
            f"{cfg.collector.num_workers} workers, but submitit_delayed_launcher(num_jobs={jobs.num_workers}): "
            "pass the same number to both."
        )
    if jobs.backend != cfg.backend.kind:
        problems.append(
            f"backend={cfg.backend.kind!r}, but submitit_delayed_launcher(backend={jobs.backend!r}): "
            "pass the same to both."
        )
    if cfg.collector.on_worker_failure == "restart":
        problems.append(
            "on_worker_failure='restart': with launcher='submitit_delayed' a lost worker's job cannot be replaced: "
            "use 'raise' or 'drop'."
        )
    if problems:
        raise ConfigError(problems)
    return jobs.tcp_port if tcp_port is None else tcp_port


def open_launcher(
    stack: contextlib.ExitStack, cfg: RunConfig, objects: Sequence[UserObjects], remote: Nested
) -> tuple[Launcher | None, Callable[..., None]]:
    """Returns the launcher of workers that are SLURM jobs (None for others) and a function that logs events. Both end
    when `stack` is closed.

    Args:
        objects: for each worker, the user objects that its configuration does not contain.
    """
    if isinstance(cfg.launcher, _Presubmitted):
        presubmitted = PresubmittedJobs.from_environment()
        assert presubmitted is not None
        events = EventLog(presubmitted.files())
        stack.callback(events.close)
        return presubmitted_workers(cfg, presubmitted, objects), events
    if cfg.launcher.kind != "submitit":
        return None, lambda name, **fields: None
    if problems := preflight.launcher_problems(cfg):
        raise ConfigError(problems)
    assert isinstance(remote, Remote)
    files = new_folder() if remote.folder is None else RunFolder(remote.folder)
    stack.enter_context(locked(files, replace=False))
    files.begin()
    events = EventLog(files)
    stack.callback(events.close)
    return stack.enter_context(
        submitted_workers(cfg, files, lambda text: events("jobs", message=text), objects)
    ), events
