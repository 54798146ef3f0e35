"""The runs in folders and their status, from the folder and, for a job, from SLURM.

A run whose process is dead is never "running".
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import DamagedFile, LauncherError
from collectx.place.slurm import commands
from collectx.place.slurm.commands import JobState
from collectx.run import Status
from collectx.run.folder import snapshot
from collectx.run.folder.files import write_json
from collectx.run.folder.layout import RunFolder, holder, is_locked
from collectx.run.folder.result import ALL_DELIVERED
from collectx.run.folder.saved_config import readable_config
from collectx.run.resume import NO_CHECKPOINT
from collectx.run.statistics import MetricsTail
from collectx.run.terminal import printing

# The states of jobs by their ids, or the error of the command that asks for them.
JobStates: TypeAlias = Mapping[str, JobState] | LauncherError

_NUM_LOG_LINES = 40
# How long a worker may take to exit after collector.close_timeout_s.
_EXIT_S = 5.0
# How long a process that has locked a folder may take to write its snapshot.
_SNAPSHOT_S = 10.0
# States of a job that has started, is not running, and has not ended.
_TRANSITIONS = {
    "COMPLETING": "SLURM ends its processes",
    "SUSPENDED": "SLURM has stopped it for a while",
    "STOPPED": "SLURM has stopped it for a while",
    "SIGNALING": "SLURM signals its processes",
    "STAGE_OUT": "SLURM copies its files",
}
_END_REASONS = {
    "TIMEOUT": "its time limit was reached: ask for more with launcher.time",
    "OUT_OF_MEMORY": "it had too little memory: ask for more with launcher.mem",
    "NODE_FAIL": "it lost a node; with launcher.requeue=true SLURM restarts it",
    "PREEMPTED": "it was preempted by another job; with launcher.requeue=true SLURM restarts it",
    "DEADLINE": "its deadline has passed",
    "BOOT_FAIL": "a node did not boot",
}


@dataclass(frozen=True)
class RunStatus:
    """The status of a run, with the reason or the place; `detail` may be empty, or have several lines."""

    status: Status
    detail: str = ""

    @property
    def has_ended(self) -> bool:
        return self.status.has_ended


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and its folder."""

    status: Status
    folder: Path


@dataclass(frozen=True)
class NamedRun:
    """A run with its name among the runs of a sweep, its absolute folder and its configuration."""

    name: str
    folder: Path
    cfg: RunConfig

    @property
    def files(self) -> RunFolder:
        """The files of the run."""
        return RunFolder(self.folder)

    @property
    def launcher(self) -> SlurmLauncherConfig:
        """The launcher of a run that is a job."""
        assert isinstance(self.cfg.launcher, SlurmLauncherConfig)
        return self.cfg.launcher

    @property
    def grace_s(self) -> float:
        """How long the run may take to end after its first signal, in seconds."""
        return self.cfg.checkpoint.grace_s + self.cfg.collector.close_timeout_s

    @property
    def workers_grace_s(self) -> float:
        """How long workers may take to end after their trainer, in seconds."""
        return self.cfg.collector.close_timeout_s + _EXIT_S


def named_run(run: RunFolder) -> NamedRun:
    """Returns a run with the configuration that it was begun or resumed with last, see `readable_config`. Waits for the
    configuration of a run that is starting, for at most `_SNAPSHOT_S` seconds."""
    deadline = time.monotonic() + _SNAPSHOT_S
    while not run.meta.exists() and is_locked(run) and time.monotonic() < deadline:
        time.sleep(0.05)
    return NamedRun(run.path.name, run.path, readable_config(run))


def begin_submitted(run: NamedRun, argv: Sequence[str]) -> None:
    """Prepares the folder of a run that a job will begin, or continue (`run.resume=auto`) where it has a checkpoint;
    prints that an earlier run in the folder begins anew."""
    files, is_auto = run.files, run.cfg.run.resume == "auto"
    resumes = is_auto and files.has_checkpoint
    if is_auto and files.has_run and not resumes:
        printing.message(f"{files.path} {NO_CHECKPOINT}")
    files.begin(keep_run=resumes)
    if not resumes:
        snapshot.write(run.cfg, files, list(argv))


def write_job(files: RunFolder, job: str) -> None:
    """Records the job that runs in the folder."""
    write_json(files.job_note, {"job": job, "host": socket.gethostname(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})


def read_job(files: RunFolder) -> str | None:
    """The job that runs, or ran, in the folder, submitted by collectx or by submitit; None where the run is no job."""
    for path in (files.job_note, files.meta):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(path.read_text())["job"])
    return None


def query_slurm(jobs: Iterable[str]) -> JobStates:
    """Asks SLURM for the states of jobs; does not ask for no job."""
    try:
        return commands.states(list(jobs))
    except LauncherError as error:
        return error


def query_workers(files: RunFolder) -> JobStates:
    """The states of the jobs that a trainer outside of SLURM has submitted for its workers. Asks SLURM if there are
    any."""
    return query_slurm(_worker_jobs(files))


def _worker_jobs(files: RunFolder) -> dict[str, str]:
    """The index of the worker by job."""
    lines = files.worker_jobs.read_text().splitlines() if files.worker_jobs.exists() else []
    jobs = (line.partition(" ") for line in lines)
    # Runs of earlier versions have the job alone, which ends with the index.
    return {job: worker or job.rpartition("_")[2] for job, _, worker in jobs}


def statuses(runs: Sequence[RunFolder]) -> list[RunStatus]:
    """The status of each run. Asks SLURM if some are jobs."""
    jobs = [read_job(run) for run in runs]
    states = query_slurm(job for job in jobs if job is not None)
    return [status_of(run, job, states) for run, job in zip(runs, jobs, strict=True)]


def status_of(files: RunFolder, job: str | None, states: JobStates) -> RunStatus:
    """The status of a run; `job` is from `read_job`, `states` are from `query_slurm`."""
    try:
        return status_of_process(files) if job is None else status_of_job(files, job, states)
    except DamagedFile as error:
        return RunStatus(Status.DAMAGED, str(error))


def status_of_job(files: RunFolder, job: str, states: JobStates) -> RunStatus:
    """The status of a run that is a job; `states` are from `query_slurm`."""
    result = files.read_result()
    state = None if isinstance(states, LauncherError) else states.get(job)
    if state is not None and not state.is_over and not state.has_started:
        word = "" if state.word == "PENDING" else state.word
        return RunStatus(Status.QUEUED, ": ".join(filter(None, (_requeue_reason(files), word, state.reason))))
    if result is not None:
        run = _from_result(result)
        # The trainer knows only which signal ended it.
        it = "it" if re.search(rf"\bjob {job}\b", run.detail) else f"job {job}"
        if run.status is Status.INTERRUPTED and state is not None and state.word in _END_REASONS:
            return RunStatus(run.status, f"{run.detail}: {it} ended as {state.word}: {_END_REASONS[state.word]}")
        if run.status is Status.INTERRUPTED and state is not None and state.word in _TRANSITIONS:
            return RunStatus(run.status, f"{run.detail}: {it} is {_transition(state)}")
        return run
    if isinstance(states, LauncherError):
        return RunStatus(Status.UNKNOWN, f"{_last_batch(files)}; SLURM does not say: {states}")
    if state is None and files.job_note.exists() and not files.log("job").exists():
        # A job of collectx opens its log before anything else.
        reason = f"job {job} was cancelled in the queue: SLURM no longer knows it, and it has no log"
        return RunStatus(Status.INTERRUPTED, reason)
    if state is None:
        return _failed(files, f"SLURM knows no job {job} any more, and it left no result")
    where = f"on {state.node}" if state.node else ""
    # SLURM takes nodes out of a job that may lose them, and out of one that is ending.
    if state.word != "COMPLETING" and (lost := _lost_node(files, job, state)):
        return _failed(files, f"{lost}, the node of the trainer, is gone: job {job} is {state}")
    if not state.is_over:
        return RunStatus(Status.RUNNING, where if state.word == "RUNNING" else f"{where}: {_transition(state)}")
    reason = f"job {job} ended as {' '.join(filter(None, (state.word, where)))}"
    if state.word in _END_REASONS:
        reason += f": {_END_REASONS[state.word]}"
    if state.word == "NODE_FAIL" and (nodes := _down_nodes(state)):
        reason += f"; SLURM says that {', '.join(nodes)} is down"
    return RunStatus(Status.INTERRUPTED, reason) if state.word == "CANCELLED" else _failed(files, reason)


def _lost_node(files: RunFolder, job: str, state: JobState) -> str:
    """The node of the trainer where it is not one of the job; otherwise empty."""
    try:
        node = files.node_note(job).read_text().strip()
        return "" if node in commands.hostnames(state.node) else node
    except (OSError, LauncherError):
        return ""


def _requeue_reason(files: RunFolder) -> str:
    """Returns why the job has been requeued by its last processes; empty where it was not."""
    *_, last = ({}, *files.read_events())
    return f"requeued ({last['reason']})" if last.get("event") == "requeued" else ""


def _transition(state: JobState) -> str:
    words = _TRANSITIONS.get(state.word)
    return f"{state.word} ({words})" if words else state.word


def _down_nodes(state: JobState) -> list[str]:
    try:
        return commands.down(state.node)
    except LauncherError:
        return []


def status_of_process(files: RunFolder) -> RunStatus:
    """The status of a run that is no job. Only its host knows whether its process is running; elsewhere, it is running
    while jobs of its workers exist."""
    if (result := files.read_result()) is not None:
        return _from_result(result)
    if (host := files.read_meta().get("host")) is None:
        if is_locked(files):
            return RunStatus(Status.RUNNING, "it is starting")
        return RunStatus(Status.FAILED, "it left neither a snapshot nor a result")
    if host == socket.gethostname():
        if is_locked(files):
            return RunStatus(Status.RUNNING, f"on {host}")
        return _failed(files, "its process has ended without leaving a result")
    unknown = f"it was started on {host} and has left no result: ask there"
    states = query_workers(files)
    if isinstance(states, LauncherError):
        return RunStatus(Status.UNKNOWN, f"{unknown}; SLURM does not say: {states}")
    if num_jobs := sum(not state.is_over for state in states.values()):
        where = f"on {host}, {_last_batch(files)}"
        return RunStatus(Status.RUNNING, f"{where}; of its workers' jobs {num_jobs} wait or run")
    return RunStatus(Status.UNKNOWN, unknown)


def where_running(files: RunFolder) -> str:
    """The job of a run that has not ended, such as "queued as job 7", or its process; empty where it has ended, or
    that is not known."""
    job, (status,) = read_job(files), statuses([files])
    if status.has_ended or status.status is Status.UNKNOWN:
        return ""
    if job is not None:
        return f"{status.status} as job {job}"
    pid, host = holder(files)
    return f"{status.status} on {host}" if pid is None else f"{status.status} as process {pid} on {host}"


def waiting_workers(files: RunFolder) -> list[str]:
    """A line for each reason why jobs of the run's workers wait in the queue. Asks SLURM if the run has such jobs."""
    states = query_workers(files)
    if isinstance(states, LauncherError):
        return [f"whether its workers' jobs wait is not known: {states}"]
    waiting: dict[str, list[str]] = {}
    workers = _worker_jobs(files)
    for job, state in states.items():
        if not (state.has_started or state.is_over):
            waiting.setdefault(str(state), []).append(workers[job])
    return [f"worker {', '.join(workers)}: {reason}" for reason, workers in waiting.items()]


def numbers_of(files: RunFolder) -> dict[str, Any] | None:
    """The numbers of a run, named as in `result.json`; None before its first batch."""
    if (result := files.read_result()) is not None:
        return result
    numbers = MetricsTail(files.metrics, -1)
    if not numbers.update():
        return None
    return {name: getattr(numbers, name) for name in ("frames", "frames_per_s", "mean_return", "taking_part")}


def _from_result(result: Mapping[str, Any]) -> RunStatus:
    reason = str(result.get("exit_reason", ""))
    return RunStatus(Status(result["status"]), "" if reason == ALL_DELIVERED else reason)


def _failed(files: RunFolder, reason: str) -> RunStatus:
    return RunStatus(Status.FAILED, f"{reason}\n{_log_tail(files)}".rstrip())


def _log_tail(files: RunFolder) -> str:
    """The end of the trainer's log, or of its job's; or the reason why there is none."""
    job = files.log("job")
    for log in (files.log("trainer"), job):
        try:
            lines = log.read_text(errors="replace").rstrip().splitlines()
        except OSError:
            continue
        if lines:
            return "\n".join([f"{log} ends:", *(f"  {line}" for line in lines[-_NUM_LOG_LINES:])])
    if not files.job_note.exists() or job.exists():
        return f"{files.logs} has nothing from it: it was killed (kill -9, or by the kernel as memory ran out)"
    return (
        f"{job} does not exist: all nodes must share that file system: choose another with hydra.run.dir or "
        "hydra.sweep.dir"
    )


def _last_batch(files: RunFolder) -> str:
    try:
        ago_s = time.time() - files.metrics.stat().st_mtime
    except OSError:
        return "no batch yet"
    # The file's time is that of another host's clock.
    ahead = f"the clock of its host is {-ago_s:.0f} s ahead of this one's"
    return f"last batch {ago_s:.0f} s ago" if ago_s > -1 else f"when its last batch came is not known ({ahead})"
