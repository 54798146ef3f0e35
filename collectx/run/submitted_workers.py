"""The workers of a run as jobs that its trainer submits: what `launcher=submitit` adds to a run. Or as jobs that were
submitted before it, and wait for it: what `submitit_delayed_launcher` needs.

Used in the trainer's process. Must not know how a scheduler is spoken to.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collectx.config import RunConfig, SubmititLauncherConfig, num_workers_of
from collectx.launcher.base import Launcher, WaitingWorkers
from collectx.run import worker
from collectx.run.folder import RunFolder
from collectx.run.role import announce
from collectx.user_objects import UserObjects


@contextmanager
def submitted_workers(
    cfg: RunConfig, files: RunFolder, say: Callable[[str], None], given: Sequence[UserObjects] | None = None
) -> Iterator[Launcher]:
    """The place of workers that are jobs of their own. At the end of the block all of these jobs have ended, or are
    cancelled; that may take `collector.close_timeout_s`.

    Args:
        say: called with lines for the user, from any thread.
        given: what each worker cannot be told as plain data; None: nothing.
    """
    from collectx.launcher.slurm.array import JobArray
    from collectx.launcher.slurm.job_watcher import JobWatcher

    launcher = cfg.launcher
    assert isinstance(launcher, SubmititLauncherConfig)
    token = secrets.token_hex(8)
    task, script = task_of(files), files.jobs / "worker.sh"
    files.jobs.mkdir(exist_ok=True)
    worker.write(task, cfg, files, token, given)
    command = [launcher.python or sys.executable, "-u", "-m", worker.__name__, str(task)]
    scheduler = JobArray(launcher, script, files.logs, command, files.worker_jobs)
    with JobWatcher(
        scheduler,
        num_workers_of(cfg),
        lambda index: files.log(f"worker-{index}"),
        cfg.collector.close_timeout_s,
        say,
        lambda endpoint: announce(files, endpoint, token),
        ("launcher.queue_timeout_s", launcher.queue_timeout_s),
    ) as jobs:
        yield jobs


@dataclass(frozen=True)
class PresubmittedJobs:
    """What the job of a trainer is told about workers whose jobs were submitted along with it.

    Attributes:
        folder: where they wait for their task.
        num_workers: how many.
        backend, tcp_port: what the one who submitted them asked for.
        queue_timeout_s: how long they, and the trainer, wait for each other.
    """

    folder: str
    num_workers: int
    backend: str
    tcp_port: int | None
    queue_timeout_s: float

    def as_environment(self) -> tuple[str, str]:
        """The variable that tells the trainer's job."""
        return _VARIABLE, json.dumps(vars(self))

    @classmethod
    def from_environment(cls) -> PresubmittedJobs | None:
        """What this process is told; None where nothing was submitted presubmitted."""
        text = os.environ.get(_VARIABLE)
        return None if text is None else cls(**json.loads(text))

    def files(self) -> RunFolder:
        """The folder, with its files' names."""
        return RunFolder(self.folder)


def presubmitted_workers(cfg: RunConfig, presubmitted: PresubmittedJobs, given: Sequence[UserObjects]) -> Launcher:
    """The place of workers whose jobs wait already: tells them their task. They are not replaced.

    Args:
        given: see `submitted_workers`.
    """
    files, token = presubmitted.files(), secrets.token_hex(8)
    worker.write(task_of(files), cfg, files, token, given)
    return WaitingWorkers(
        lambda worker: files.log(f"worker-{worker}"),
        lambda endpoint: announce(files, endpoint, token),
        ("queue_timeout_s", presubmitted.queue_timeout_s),
    )


def task_of(files: RunFolder) -> Path:
    """What the workers of a run are told."""
    return files.jobs / "worker.json"


_VARIABLE = "COLLECTX_PRESUBMITTED_JOBS"
