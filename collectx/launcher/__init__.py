"""Launchers: where workers run. `make_launcher` chooses one by the configuration."""

from __future__ import annotations

from pathlib import Path

from collectx.config import RayLauncherConfig, RunConfig, backend_of, num_workers_of
from collectx.launcher.base import Launcher


def make_launcher(cfg: RunConfig, log_dir: Path | None) -> Launcher:
    """The launcher of workers that this process starts.

    Args:
        log_dir: where worker processes of this machine write their logs; None leaves their output on the terminal.

    Raises:
        LauncherError: the Ray cluster cannot be reached, or has not the resources for the workers.
    """
    backend, launcher = backend_of(cfg), cfg.launcher
    if backend == "inline":
        from collectx.launcher.inline import InlineLauncher

        return InlineLauncher()
    if isinstance(launcher, RayLauncherConfig):
        from collectx.launcher.ray import RayLauncher

        return RayLauncher(launcher, num_workers_of(cfg), cfg.collector.start_timeout_s)
    if backend == "mpi":
        from collectx.launcher.mpi import MpiLauncher

        return MpiLauncher(launcher.num_threads, launcher.pin_cores, log_dir)
    from collectx.launcher.local import LocalLauncher

    return LocalLauncher(launcher.num_threads, launcher.pin_cores, log_dir)
