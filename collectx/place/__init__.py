"""Launchers: where workers run. `make_launcher` chooses one by the configuration. They run in the trainer's process."""

from __future__ import annotations

from pathlib import Path

from collectx.config.derived import backend_of
from collectx.config.registry import implementation
from collectx.config.schema.run import RunConfig
from collectx.errors import LauncherError
from collectx.place.base import InlineLauncher, Launcher


def make_launcher(cfg: RunConfig, log_dir: Path | None) -> Launcher:
    """The launcher of workers that this process starts.

    Args:
        log_dir: where worker processes of this machine write their logs; None leaves their output on the terminal.

    Raises:
        LauncherError: the Ray cluster cannot be reached, or has not the resources for the workers; or this process
            does not start the workers of this launcher.
    """
    backend = backend_of(cfg)
    if backend == "inline":
        return InlineLauncher()
    if backend == "mpi":
        from collectx.place.mpi import MpiLauncher

        return MpiLauncher(cfg.launcher.num_threads, cfg.collector.start_timeout_s, cfg.launcher.pin_cores, log_dir)
    build = implementation("launcher", cfg.launcher.kind)
    if build is None:
        raise LauncherError(f"launcher={cfg.launcher.kind} submits its workers as jobs: start it by `collectx run`.")
    return build(cfg, log_dir)
