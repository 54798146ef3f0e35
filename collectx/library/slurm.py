"""Where a remote collector's workers come up: as processes of this machine, SLURM jobs, actors of Ray.

Called in the trainer's process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from collectx.config import RunConfig, SubmititLauncherConfig
from collectx.errors import ConfigError
from collectx.launcher.base import Launcher
from collectx.launcher.slurm.array import slurm_resources
from collectx.library.keywords import Nested, RayRemote, Remote
from collectx.run import RunFolder, preflight
from collectx.run.events import EventLog
from collectx.run.folder import new_folder
from collectx.run.lock import locked
from collectx.run.submitted_workers import PresubmittedJobs, presubmitted_workers, submitted_workers
from collectx.user_objects import UserObjects


def choose_launcher(cfg: RunConfig, remote: Nested) -> None:
    """Puts the launcher into `cfg`."""
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
    """Jobs that wait already, see `collectx.run.submitted_workers.PresubmittedJobs`."""


def _check_presubmitted(cfg: RunConfig, tcp_port: int | None) -> int | None:
    """Whether what was submitted beforehand is what `cfg` wants; returns the port to listen at.

    Raises:
        ConfigError: it is not, or nothing was submitted.
    """
    there = PresubmittedJobs.from_environment()
    if there is None:
        raise ConfigError(
            [
                "launcher='submitit_delayed': no jobs were submitted for this process: decorate the main function with "
                "collectx.submitit_delayed_launcher, or use launcher='submitit'."
            ]
        )
    problems = []
    if there.num_workers != cfg.collector.num_workers:
        problems.append(
            f"{cfg.collector.num_workers} workers, but submitit_delayed_launcher(num_jobs={there.num_workers}): "
            "give both the same number."
        )
    if there.backend != cfg.backend.kind:
        problems.append(
            f"backend={cfg.backend.kind!r}, but submitit_delayed_launcher(backend={there.backend!r}): "
            "give both the same."
        )
    if cfg.collector.on_worker_failure == "restart":
        problems.append(
            "on_worker_failure='restart': with launcher='submitit_delayed' no job may be submitted in the place of one "
            "that is gone: use 'raise' or 'drop'."
        )
    if problems:
        raise ConfigError(problems)
    return there.tcp_port if tcp_port is None else tcp_port


def start_workers(
    stack: contextlib.ExitStack, cfg: RunConfig, given: Sequence[UserObjects], remote: Nested
) -> tuple[Launcher | None, Callable[..., None]]:
    """Where the workers come up that are SLURM jobs, until `stack` is closed; and what writes events down.

    Args:
        given: what each worker cannot be told as plain data.
    """
    if isinstance(cfg.launcher, _Presubmitted):
        presubmitted = PresubmittedJobs.from_environment()
        assert presubmitted is not None
        events = EventLog(presubmitted.files())
        stack.callback(events.close)
        return presubmitted_workers(cfg, presubmitted, given), events
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
    return stack.enter_context(submitted_workers(cfg, files, lambda text: events("jobs", message=text), given)), events
