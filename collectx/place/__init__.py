"""Places: where workers run (`place_of`), and what starts them there (`make_launcher`)."""

from __future__ import annotations

from pathlib import Path

from collectx.config.registry import implementation
from collectx.config.schema.run import RunConfig
from collectx.errors import LauncherError
from collectx.place.base import Place
from collectx.place.inline import Inline, InlineLauncher
from collectx.place.launcher import Launcher
from collectx.place.local import Local
from collectx.place.ray import RayCluster
from collectx.place.slurm.jobs import SlurmJob, SlurmParts, SlurmWorkers

_PLACES: dict[str, type[Place]] = {
    "inline": Inline,
    "local": Local,
    "ray": RayCluster,
    "slurm": SlurmJob,
    "submitit": SlurmWorkers,
    "submitit_delayed": SlurmParts,
}


def place_of(cfg: RunConfig) -> Place:
    """The place of a run's workers. Raises `Unset` if the launcher failed its check."""
    return _PLACES[cfg.launcher.kind](cfg)


def make_launcher(cfg: RunConfig, log_dir: Path | None) -> Launcher:
    """The launcher of workers that this process starts.

    Args:
        log_dir: where worker processes of this machine write their logs; None leaves their output on the terminal.

    Raises:
        LauncherError: the Ray cluster cannot be reached, or has not the resources for the workers; or this process
            does not start the workers of this launcher.
    """
    backend = place_of(cfg).backend
    if backend == "inline":
        return InlineLauncher()
    if backend == "mpi":
        from collectx.place.mpi import MpiLauncher

        return MpiLauncher(cfg.launcher.num_threads, cfg.collector.start_timeout_s, cfg.launcher.pin_cores, log_dir)
    build = implementation("launcher", cfg.launcher.kind)
    if build is None:
        raise LauncherError(f"launcher={cfg.launcher.kind} submits its workers as jobs: start it by `collectx run`.")
    return build(cfg, log_dir)
