"""Workers that are jobs of the trainer's process (`launcher=submitit`).

Workers whose jobs are submitted together with their trainer's job (`collectx.submitit_delayed_launcher`), for
clusters where a job cannot submit jobs.

    python script.py                `submit_and_follow`: submits all jobs and follows the first
      job: python script.py         `presubmitted_workers`: the script's collector writes `jobs/task.json`
      jobs: one per worker          `entry.py --wait`: these wait for that file, and join

How the processes of a run find each other on a shared file system: the trainer's address, and the task of a job.

<run>/rendezvous.json, secret     written by the trainer when it listens, read by workers
<run>/jobs/task.json, task.pkl    written before jobs are submitted, read by every process of a job (entry.py)
"""

from __future__ import annotations

import codecs
import json
import os
import pickle
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.config.derived import num_workers_of
from collectx.config.registry import from_json, to_json
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import LauncherError, RendezvousError
from collectx.place.launcher import Launcher
from collectx.place.slurm import commands
from collectx.place.slurm.job_watcher import JobArray
from collectx.process import until
from collectx.progress import file_size
from collectx.run.folder.files import read_private, write_json, write_private
from collectx.run.folder.layout import RunFolder
from collectx.user_objects import Sealed, UserObjects

if TYPE_CHECKING:
    from collectx.transport.network.handshake import Endpoint


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
    from collectx.place.slurm.job_watcher import JobArray, JobWatcher
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


_VARIABLE = "COLLECTX_PRESUBMITTED_JOBS"
_MIN_PAUSE_S = 1.0
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True)
class PresubmittedJobs:
    """What the trainer's job must know about the submitted worker jobs; passed in an environment variable. The workers
    wait for `jobs/task.json` in the run folder `folder`; workers and trainer wait `queue_timeout_s` for each other."""

    folder: str
    num_workers: int
    backend: str
    tcp_port: int | None
    queue_timeout_s: float

    def as_environment(self) -> tuple[str, str]:
        """Returns name and value of the environment variable."""
        return _VARIABLE, json.dumps(vars(self))

    @classmethod
    def from_environment(cls) -> PresubmittedJobs | None:
        """Returns the content of the environment variable; None if it is not set."""
        text = os.environ.get(_VARIABLE)
        return None if text is None else cls(**json.loads(text))

    def run_folder(self) -> RunFolder:
        return RunFolder(self.folder)


def presubmitted_workers(cfg: RunConfig, jobs: PresubmittedJobs, objects: Sequence[UserObjects]) -> Launcher:
    """Writes `jobs/task.json` for the waiting workers; returns their launcher, which replaces no worker."""
    run_folder, token = jobs.run_folder(), secrets.token_hex(8)
    JobSpec(cfg, token=token).write(run_folder, objects)
    return Launcher(
        run_folder.worker_log,
        lambda endpoint: announce_trainer(run_folder, endpoint, token),
        ("queue_timeout_s", jobs.queue_timeout_s),
    )


def submit_and_follow(
    run_folder: RunFolder,
    presubmitted: PresubmittedJobs,
    trainer: SubmititLauncherConfig,
    workers: SubmititLauncherConfig,
) -> None:
    """Submits the trainer's job, which runs this process's script, and the worker jobs. Copies the trainer's output to
    standard output; blocks until the trainer's job has completed. Cancels all jobs at the end. `trainer` and `workers`
    are the resources of the trainer's job, and of each worker's. Raises `LauncherError` if SLURM refuses a job, if
    the trainer's job fails, or if a worker's job fails before any worker has joined."""
    run_folder.begin()
    run_folder.jobs.mkdir(exist_ok=True)
    script = run_folder.jobs / "trainer.sh"
    script.write_text(_script(trainer, run_folder, presubmitted))
    command = worker_command(run_folder, wait_s=presubmitted.queue_timeout_s)
    array = JobArray(workers, run_folder, command)
    jobs: list[str] = []
    try:
        jobs.append(commands.submit(script))
        jobs += array.submit(range(presubmitted.num_workers)).values()
        print(
            f"collectx: job {jobs[0]}, its workers {', '.join(jobs[1:])}; log: {run_folder.log('trainer')}", flush=True
        )
        _follow(jobs, run_folder)
    finally:
        if jobs:
            commands.cancel(jobs)


def _script(resources: SubmititLauncherConfig, run_folder: RunFolder, presubmitted: PresubmittedJobs) -> str:
    log = str(run_folder.log("trainer")).replace("%", "%%")
    header = commands.header(resources, job_name="collectx", output=log, open_mode="append", ntasks=1, no_requeue=True)
    name, value = presubmitted.as_environment()
    body = commands.body(resources, [sys.executable, "-u", *sys.orig_argv[1:]])
    return "\n".join(["#!/bin/bash", *header, f"export {name}={shlex.quote(value)}", *body, ""])


def _follow(jobs: Sequence[str], run_folder: RunFolder) -> None:
    """Copies the trainer's log to standard output until the trainer's job, the first one, ends."""
    log, num_read, pause_s = run_folder.log("trainer"), 0, _MIN_PAUSE_S
    # A read may end within a character.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    gone = commands.JobState("GONE", True, True)
    while True:
        states = commands.states(jobs)
        trainer, *others = [states.get(job, gone) for job in jobs]
        text = _read_from(log, num_read)
        num_read += len(text)
        print(decoder.decode(text, final=trainer.is_over), end="", flush=True)
        pause_s = _MIN_PAUSE_S if text else min(1.5 * pause_s, _MAX_PAUSE_S)
        if trainer.is_over:
            if trainer.word != "COMPLETED":
                raise LauncherError(f"the trainer's job {jobs[0]} ended as {trainer}. Its log: {log}")
            return
        # Once a worker has joined, the trainer handles lost workers.
        has_joined = any(event["event"] == "worker_joined" for event in run_folder.read_events())
        for index, state in enumerate(others):
            if state.is_over and state.word != "COMPLETED" and not has_joined:
                path = run_folder.worker_log(index)
                raise LauncherError(f"the job {jobs[1 + index]} of worker {index} ended as {state}. Its log: {path}")
        time.sleep(pause_s)


def _read_from(path: Path, position: int) -> bytes:
    """Returns what a file contains from `position` on; nothing if the file does not exist."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            return file.read()
    except FileNotFoundError:
        return b""


_POLL_S = 0.1


@dataclass(frozen=True)
class JobSpec:
    """`jobs/task.json`: what the processes of a SLURM job run. `token` identifies this attempt of the run, see
    `announce_trainer`; None in a job that runs trainer and workers, whose job id identifies it. `hydra` is what Hydra
    set up in the process of the command."""

    cfg: RunConfig
    argv: tuple[str, ...] = ()
    token: str | None = None
    hydra: dict[str, Any] | None = None

    def write(self, run_folder: RunFolder, objects: Sequence[UserObjects] | None = None) -> None:
        """Writes the file, and pickles `objects`, one for each worker, into a file beside it that only this user can
        read."""
        cfg = self.cfg
        run_folder.jobs.mkdir(parents=True, exist_ok=True)
        if objects is not None:
            write_private(run_folder.job_objects, pickle.dumps([*map(Sealed.of, objects)]))
            cfg = replace(cfg, env=EnvConfig(kind="python", num_envs=0), policy=PolicyConfig(kind="python"))
        content = {"cfg": to_json(cfg), "argv": self.argv, "token": self.token, "hydra": self.hydra}
        # It contains the values of environment variables, which may be secrets.
        write_json(run_folder.job_spec, content, is_private=True)

    @classmethod
    def read(cls, run_folder: RunFolder) -> JobSpec:
        """Returns the content of the file. Raises `OSError`, `ValueError`, `KeyError` or `TypeError` if it cannot be
        read."""
        content = json.loads(run_folder.job_spec.read_text())
        return cls(from_json(content["cfg"]), tuple(content["argv"]), content["token"], content.get("hydra"))


def read_objects(run_folder: RunFolder, worker: int) -> Sealed[UserObjects] | None:
    """Returns the objects of a worker; None if its configuration is plain data. Raises as `read_private` does."""
    return pickle.loads(read_private(run_folder.job_objects))[worker] if run_folder.job_objects.exists() else None


def announce_trainer(run_folder: RunFolder, endpoint: Endpoint, token: str) -> None:
    """Writes the trainer's address. All processes of one attempt of the run share `token`, so workers ignore the
    address of an earlier attempt."""
    # The secret is on disk before the address.
    write_private(run_folder.secret, endpoint.secret)
    write_json(run_folder.rendezvous, {"addresses": list(endpoint.addresses), "port": endpoint.port, "token": token})


def find_trainer(run_folder: RunFolder, token: str, timeout_name: str, timeout_s: float) -> Endpoint:
    """Blocks until the trainer listens; returns its address. `timeout_name` is what the message calls `timeout_s`.
    Raises `RendezvousError` if no address appeared within `timeout_s` after the job's log last grew, or
    `PermissionError` if another user may have written the secret."""
    from collectx.transport.network.handshake import Endpoint

    def address_of_trainer() -> dict[str, Any] | None:
        with suppress(OSError, json.JSONDecodeError):
            address = json.loads(run_folder.rendezvous.read_text())
            return address if address.get("token") == token else None
        return None

    address, log_size = until(address_of_trainer, timeout_s, _POLL_S), 0
    # A trainer that still imports says so in the job's log.
    while not address and (size := file_size(run_folder.log("job"))) > log_size:
        address, log_size = until(address_of_trainer, timeout_s, _POLL_S), size
    if address:
        return Endpoint(tuple(address["addresses"]), address["port"], read_private(run_folder.secret))
    reason = "exists, but contains no address of the trainer" if run_folder.path.is_dir() else "does not exist"
    raise RendezvousError(
        f"found no trainer within {timeout_s:g} s ({timeout_name}={timeout_s:g}): on this host the run folder "
        f"{run_folder.path} {reason}. If the nodes do not share its file system, choose another folder with "
        "hydra.run.dir or hydra.sweep.dir. Otherwise, the trainer may have failed: see its log."
    )
