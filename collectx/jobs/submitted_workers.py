"""Workers that are jobs: submitted by the trainer's process (`launcher=submitit`), or submitted along with the
trainer's job and waiting for `jobs/task.json` (`submitit_delayed_launcher`)."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from collectx.config.derived import num_workers_of
from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.jobs.rendezvous import JobSpec, announce_trainer
from collectx.place.launcher import Launcher
from collectx.run.folder.layout import RunFolder
from collectx.user_objects import UserObjects

_VARIABLE = "COLLECTX_PRESUBMITTED_JOBS"


def worker_command(files: RunFolder, python: str | None = None, wait_s: float = 0.0) -> list[str]:
    """The command of a worker's job, without the index of the worker, which is its last argument."""
    wait = ["--wait", f"{wait_s:g}"] if wait_s else []
    return [python or sys.executable, "-u", "-m", "collectx.jobs.entry", *wait, str(files.path), "--worker"]


@contextmanager
def submitted_workers(
    cfg: RunConfig, files: RunFolder, show: Callable[[str], None], objects: Sequence[UserObjects] | None = None
) -> Iterator[Launcher]:
    """Submits workers as jobs. At the end of the block all of these jobs have ended, or are cancelled; that may take
    `collector.close_timeout_s`. `show` is called with messages for the user, from any thread; `objects` are env, policy
    and hooks of each worker that plain data cannot hold."""
    from collectx.place.slurm.array import JobArray
    from collectx.place.slurm.job_watcher import JobWatcher
    from collectx.place.slurm.requeue import is_requeue_wanted

    launcher = cfg.launcher
    assert isinstance(launcher, SubmititLauncherConfig)
    token = secrets.token_hex(8)
    JobSpec(cfg, token=token).write(files, objects)
    command = worker_command(files, launcher.python)
    scheduler = JobArray(launcher, files.jobs / "worker.sh", files.logs, command, files.worker_jobs)
    watcher = JobWatcher(
        scheduler,
        num_workers_of(cfg.collector),
        files.worker_log,
        cfg.collector.close_timeout_s,
        show,
        lambda endpoint: announce_trainer(files, endpoint, token),
        ("launcher.queue_timeout_s", launcher.queue_timeout_s),
        launcher.max_requeues if is_requeue_wanted(launcher) else 0,
    )
    with closing(watcher):
        yield watcher


@dataclass(frozen=True)
class PresubmittedJobs:
    """The workers' jobs that were submitted along with the trainer's job, passed to it in an environment variable.

    Attributes:
        folder: the run folder in which they wait for their task.
        backend, tcp_port: as passed to `submitit_delayed_launcher`.
        queue_timeout_s: how long they and the trainer wait for each other.
    """

    folder: str
    num_workers: int
    backend: str
    tcp_port: int | None
    queue_timeout_s: float

    def as_environment(self) -> tuple[str, str]:
        """Name and value of the environment variable of the trainer's job."""
        return _VARIABLE, json.dumps(vars(self))

    @classmethod
    def from_environment(cls) -> PresubmittedJobs | None:
        """Reads the environment variable of this process; None where it is not set."""
        text = os.environ.get(_VARIABLE)
        return None if text is None else cls(**json.loads(text))

    def files(self) -> RunFolder:
        return RunFolder(self.folder)


def presubmitted_workers(cfg: RunConfig, jobs: PresubmittedJobs, objects: Sequence[UserObjects]) -> Launcher:
    """Writes what workers run whose jobs were submitted before (see `submitted_workers`). They are not replaced."""
    files, token = jobs.files(), secrets.token_hex(8)
    JobSpec(cfg, token=token).write(files, objects)
    return Launcher(
        files.worker_log,
        lambda endpoint: announce_trainer(files, endpoint, token),
        ("queue_timeout_s", jobs.queue_timeout_s),
    )
