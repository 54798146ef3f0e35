"""Workers that are jobs of the trainer's process (`launcher=submitit`)."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from collectx.config.derived import num_workers_of
from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.jobs.rendezvous import JobSpec, announce_trainer
from collectx.place.launcher import Launcher
from collectx.run.folder.layout import RunFolder
from collectx.user_objects import UserObjects


def worker_command(run_folder: RunFolder, python: str | None = None, wait_s: float = 0.0) -> list[str]:
    """Returns the command of a worker's job, without its last argument, the worker's index."""
    wait = ["--wait", f"{wait_s:g}"] if wait_s else []
    return [python or sys.executable, "-u", "-m", "collectx.jobs.entry", *wait, str(run_folder.path), "--worker"]


@contextmanager
def submitted_workers(
    cfg: RunConfig, run_folder: RunFolder, show: Callable[[str], None], objects: Sequence[UserObjects] | None = None
) -> Iterator[Launcher]:
    """Yields the launcher that submits workers as jobs. The end of the block waits for these jobs, or cancels them
    after `collector.close_timeout_s`. `objects` are env, policy and hooks of each worker; None if `cfg` describes them
    as plain data."""
    from collectx.place.slurm.array import JobArray
    from collectx.place.slurm.job_watcher import JobWatcher
    from collectx.place.slurm.requeue import is_requeue_wanted

    launcher = cfg.launcher
    assert isinstance(launcher, SubmititLauncherConfig)
    token = secrets.token_hex(8)
    JobSpec(cfg, token=token).write(run_folder, objects)
    command = worker_command(run_folder, launcher.python)
    scheduler = JobArray(launcher, run_folder, command)
    watcher = JobWatcher(
        scheduler,
        num_workers=num_workers_of(cfg.collector),
        log=run_folder.worker_log,
        grace_s=cfg.collector.close_timeout_s,
        say=show,
        announce=lambda endpoint: announce_trainer(run_folder, endpoint, token),
        join_timeout=("launcher.queue_timeout_s", launcher.queue_timeout_s),
        max_requeues=launcher.max_requeues if is_requeue_wanted(launcher) else 0,
    )
    with closing(watcher):
        yield watcher
