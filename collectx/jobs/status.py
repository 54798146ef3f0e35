"""The status of runs, from their folders and, for jobs, from SLURM. A run whose process is dead is never "running"."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from collectx.config.problem import counted
from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import TRACEBACK, DamagedFileError, LauncherError
from collectx.place import place_of
from collectx.place.slurm import commands
from collectx.place.slurm.commands import JobState
from collectx.place.slurm.jobs import SlurmPlace
from collectx.process import until
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
# How long a process that locked a folder may take to write its snapshot.
_SNAPSHOT_S = 10.0
# The begin of an event's line in `logs/trainer.log`.
_EVENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
# States of a started job that neither runs nor has ended.
_TRANSITIONS = {
    "COMPLETING": "SLURM is ending its processes",
    "SUSPENDED": "SLURM suspended it, and decides when it continues",
    "STOPPED": "SLURM stopped it, and decides when it continues",
    "SIGNALING": "SLURM is signalling its processes",
    "STAGE_OUT": "SLURM is copying its files",
}
_END_REASONS = {
    "TIMEOUT": "it reached its time limit. Ask for more time with launcher.time",
    "OUT_OF_MEMORY": "it ran out of memory. Ask for more with launcher.mem",
    "NODE_FAIL": "it lost a node. With launcher.requeue=true, SLURM restarts such jobs",
    "PREEMPTED": "another job preempted it. With launcher.requeue=true, SLURM restarts such jobs",
    "DEADLINE": "its deadline has passed",
    "BOOT_FAIL": "a node did not boot",
}


@dataclass(frozen=True)
class RunStatus:
    """The status of a run. `detail` gives the reason or the host; it may be empty, or several lines."""

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
    """A run: its name within the sweep, its absolute folder, its configuration, and what Hydra set up for it."""

    name: str
    folder: Path
    cfg: RunConfig
    hydra: dict[str, Any] | None = None

    @property
    def run_folder(self) -> RunFolder:
        """The files of the run."""
        return RunFolder(self.folder)

    @property
    def launcher(self) -> SlurmLauncherConfig:
        """The launcher's options; only for a run that is a job."""
        assert isinstance(self.cfg.launcher, SlurmLauncherConfig)
        return self.cfg.launcher

    @property
    def place(self) -> SlurmPlace:
        """The place of the run's tasks; only for a run that is a job."""
        place = place_of(self.cfg)
        assert isinstance(place, SlurmPlace)
        return place

    @property
    def grace_s(self) -> float:
        """How many seconds the run may take to end after its first signal."""
        return self.cfg.checkpoint.grace_s + self.cfg.collector.close_timeout_s

    @property
    def workers_grace_s(self) -> float:
        """How many seconds workers may take to end after their trainer."""
        return self.cfg.collector.close_timeout_s + _EXIT_S


def named_run(run: RunFolder) -> NamedRun:
    """Returns a run with the configuration of its last start or resume, see `readable_config`. Waits up to
    `_SNAPSHOT_S` seconds for the configuration of a starting run."""
    until(lambda: run.meta.exists() or not is_locked(run), _SNAPSHOT_S, 0.05)
    return NamedRun(run.path.name, run.path, readable_config(run))


def begin_submitted(run: NamedRun, argv: Sequence[str]) -> None:
    """Prepares the folder for a job that begins the run, or continues it if there is a checkpoint and
    `run.resume=auto`. Prints a message if an earlier run in the folder begins again."""
    run_folder, is_auto = run.run_folder, run.cfg.run.resume == "auto"
    resumes = is_auto and run_folder.has_checkpoint
    if is_auto and run_folder.has_run and not resumes:
        printing.message(f"{run_folder.path} {NO_CHECKPOINT}")
    run_folder.begin(keep_run=resumes)
    if not resumes:
        snapshot.write(run.cfg, run_folder, list(argv))


def write_job(run_folder: RunFolder, job: str) -> None:
    """Writes the id of the job that will run in the folder, for `read_job`."""
    write_json(
        run_folder.job_note, {"job": job, "host": socket.gethostname(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    )


def read_job(run_folder: RunFolder) -> str | None:
    """Returns the id of a run's job, which collectx or submitit submitted; None if the run is not a job."""
    for path in (run_folder.job_note, run_folder.newest_meta):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(path.read_text())["job"])
    return None


def query_slurm(jobs: Iterable[str]) -> JobStates:
    """Returns the states of jobs. Asks SLURM if there are any; blocks for its answer."""
    try:
        return commands.states(list(jobs))
    except LauncherError as error:
        return error


def query_workers(run_folder: RunFolder) -> JobStates:
    """Returns the states of the worker jobs of a trainer outside SLURM. Asks SLURM if there are any."""
    return query_slurm(_worker_jobs(run_folder))


def _worker_jobs(run_folder: RunFolder) -> dict[str, str]:
    lines = run_folder.worker_jobs.read_text().splitlines() if run_folder.worker_jobs.exists() else []
    jobs = (line.partition(" ") for line in lines)
    return {job: worker for job, _, worker in jobs}


def statuses(runs: Sequence[RunFolder]) -> list[RunStatus]:
    """Returns the status of each run. Asks SLURM, once, if some are jobs."""
    jobs = [read_job(run) for run in runs]
    states = query_slurm(job for job in jobs if job is not None)
    return [status_of(run, job, states) for run, job in zip(runs, jobs, strict=True)]


def status_of(run_folder: RunFolder, job: str | None, states: JobStates) -> RunStatus:
    """Returns the status of a run. `job` is what `read_job` returned, `states` what `query_slurm` returned."""
    try:
        return status_of_process(run_folder) if job is None else status_of_job(run_folder, job, states)
    except DamagedFileError as error:
        return RunStatus(Status.DAMAGED, str(error))


def status_of_job(run_folder: RunFolder, job: str, states: JobStates) -> RunStatus:
    """Returns the status of a run that is a job. `states` is what `query_slurm` returned."""
    result = run_folder.read_result()
    state = None if isinstance(states, LauncherError) else states.get(job)
    if state is not None and state.is_waiting:
        word = "" if state.word == "PENDING" else state.word
        return RunStatus(Status.QUEUED, ", ".join(filter(None, (_requeue_reason(run_folder), word, state.reason))))
    if result is not None:
        run = _from_result(run_folder, result)
        # The trainer only knows which signal ended it.
        if run.status is Status.INTERRUPTED and state is not None and state.word in _END_REASONS:
            why = f"job {job} ended as {state.word}, because {_END_REASONS[state.word]}"
            return RunStatus(run.status, f"{run.detail}; {why}")
        if run.status is Status.INTERRUPTED and state is not None and state.word in _TRANSITIONS:
            return RunStatus(run.status, f"{run.detail}; job {job} is {_transition(state)}")
        return run
    if isinstance(states, LauncherError):
        return RunStatus(Status.UNKNOWN, f"{_last_batch(run_folder)}; SLURM does not answer: {states}")
    if state is None and run_folder.job_note.exists() and not run_folder.log("job").exists():
        # A job of collectx opens its log first.
        return RunStatus(Status.INTERRUPTED, f"job {job} was cancelled before it started")
    if state is None:
        return _failed(run_folder, f"SLURM no longer knows job {job}, which left no result")
    where = f"on {state.node}" if state.node else ""
    # SLURM removes lost nodes from a job that may lose them, and nodes from an ending job.
    if state.word != "COMPLETING" and (lost := _lost_node(run_folder, job, state)):
        return _failed(run_folder, f"the trainer's node {lost} is gone, and job {job} is {state}")
    if not state.is_over:
        return RunStatus(Status.RUNNING, where if state.word == "RUNNING" else f"{where}, {_transition(state)}")
    reason = f"job {job} ended as {' '.join(filter(None, (state.word, where)))}"
    if state.word in _END_REASONS:
        reason += f", because {_END_REASONS[state.word]}"
    if state.word == "NODE_FAIL":
        with suppress(LauncherError):
            nodes = commands.down(state.node)
            verb = "is" if len(nodes) == 1 else "are"
            reason += f"; SLURM says that {', '.join(nodes)} {verb} down" if nodes else ""
    return RunStatus(Status.INTERRUPTED, reason) if state.word == "CANCELLED" else _failed(run_folder, reason)


def _lost_node(run_folder: RunFolder, job: str, state: JobState) -> str:
    """Returns the trainer's node if it no longer belongs to the job, otherwise ""."""
    try:
        node = run_folder.node_note(job).read_text().strip()
        return "" if node in commands.hostnames(state.node) else node
    except (OSError, LauncherError):
        return ""


def _requeue_reason(run_folder: RunFolder) -> str:
    """Returns why the run requeued its job, if that was its last event, otherwise ""."""
    *_, last = ({}, *run_folder.read_events())
    return f"requeued ({last['reason']})" if last.get("event") == "requeued" else ""


def _transition(state: JobState) -> str:
    words = _TRANSITIONS.get(state.word)
    return f"{state.word} ({words})" if words else state.word


def status_of_process(run_folder: RunFolder) -> RunStatus:
    """Returns the status of a run that is not a job. Only the run's host knows whether its process is alive; on other
    hosts, a run counts as running while its worker jobs have not ended."""
    if (result := run_folder.read_result()) is not None:
        return _from_result(run_folder, result)
    if (host := run_folder.read_meta().get("host")) is None:
        if is_locked(run_folder):
            return RunStatus(Status.RUNNING, "it is starting")
        return RunStatus(Status.FAILED, "it ended before it wrote a snapshot or a result")
    if host == socket.gethostname():
        if is_locked(run_folder):
            return RunStatus(Status.RUNNING, f"on {host}")
        # It may have ended since.
        if (result := run_folder.read_result()) is not None:
            return _from_result(run_folder, result)
        return _failed(run_folder, "its process ended without a result")
    unknown = f"it was started on {host} and has no result, so use collectx status on that host"
    states = query_workers(run_folder)
    if isinstance(states, LauncherError):
        return RunStatus(Status.UNKNOWN, f"{unknown}; SLURM does not answer: {states}")
    if num_jobs := sum(not state.is_over for state in states.values()):
        where = f"on {host}, {_last_batch(run_folder)}"
        return RunStatus(Status.RUNNING, f"{where}; {counted(num_jobs, 'worker job')} still queued or running")
    return RunStatus(Status.UNKNOWN, unknown)


def where_running(run_folder: RunFolder) -> str:
    """Returns where an unfinished run is, such as "queued as job 7" or "running as process 8 on n1"; "" if it has
    ended, or its state is unknown."""
    job, (status,) = read_job(run_folder), statuses([run_folder])
    if status.has_ended or status.status is Status.UNKNOWN:
        return ""
    if job is not None:
        return f"{status.status} as job {job}"
    pid, host = holder(run_folder)
    return f"{status.status} on {host}" if pid is None else f"{status.status} as process {pid} on {host}"


def processes(run_folder: RunFolder) -> dict[str, int]:
    """Returns the ids of a run's processes on this host, of the trainer and of those with a log, by their names. An
    env's processes share the log of their worker, which is older."""
    trainer, logs = holder(run_folder)[0], run_folder.logs.resolve()
    found = {} if trainer is None else {"trainer": trainer}
    with suppress(OSError):  # only Linux lists them
        for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
            with suppress(OSError):
                log = Path(os.readlink(f"/proc/{pid}/fd/2"))
                if log.parent == logs:
                    found.setdefault(log.stem, pid)
    return found


def waiting_workers(run_folder: RunFolder) -> list[str]:
    """Returns a line for each reason why worker jobs wait in the queue. Asks SLURM if the run has worker jobs."""
    states = query_workers(run_folder)
    if isinstance(states, LauncherError):
        return [f"cannot tell whether worker jobs are waiting in the queue: {states}"]
    workers = _worker_jobs(run_folder)
    return commands.why_waiting({workers[job]: state for job, state in states.items() if state.is_waiting})


def numbers_of(run_folder: RunFolder) -> dict[str, Any] | None:
    """Returns the numbers of a run, named as in `result.json`; None before the first batch."""
    if (result := run_folder.read_result()) is not None:
        return result
    numbers = MetricsTail(run_folder.metrics, -1)
    if not numbers.update():
        return None
    return {
        name: getattr(numbers, name) for name in ("frames", "frames_per_s", "mean_return", "taking_part", "learners")
    }


def _from_result(run_folder: RunFolder, result: Mapping[str, Any]) -> RunStatus:
    reason, rung = str(result.get("exit_reason", "")), result.get("rung") or {}
    if rung.get("stopped"):
        return RunStatus(Status.STOPPED, reason)
    status = Status(result["status"])
    if status is Status.COMPLETED and rung.get("number") != rung.get("of"):
        return RunStatus(Status.WAITING, reason)
    if status is Status.COMPLETED and not rung and "(run.max_batches=" in reason and _is_in_rung(run_folder.path):
        return RunStatus(Status.WAITING, "it has reached a rung, and waits for the other points of its sweep")
    return RunStatus(status, "" if reason == ALL_DELIVERED else reason)


def _is_in_rung(point: Path) -> bool:
    """Whether a folder is in that of a sweep by halving which has not ended."""
    try:
        is_halving = "HalvingSweeper" in (point.parent / "multirun.yaml").read_text()
    except OSError:
        return False
    return is_halving and not (point.parent / "optimization_results.yaml").exists()


def _failed(run_folder: RunFolder, reason: str) -> RunStatus:
    return RunStatus(Status.FAILED, f"{reason}\n{_log_tail(run_folder)}".rstrip())


def _log_tail(run_folder: RunFolder) -> str:
    """Returns the end of the trainer's or the job's log; if it contains no error, why."""
    job, trainer = run_folder.log("job"), run_folder.log("trainer")
    # The log of a job also contains why SLURM ended the trainer.
    for log in (job, trainer) if run_folder.job_note.exists() else (trainer, job):
        try:
            lines = log.read_text(errors="replace").rstrip().splitlines()
        except OSError:
            continue
        # A trainer's error stands after the events, or its process was killed.
        events = [] if log == job else [index for index, line in enumerate(lines) if _EVENT.match(line)]
        if lines and (not events or TRACEBACK.strip() in lines[events[-1] :]):
            return "\n".join([f"{log} ends with:", *(f"  {line}" for line in lines[-_NUM_LOG_LINES:])])
    if not run_folder.job_note.exists() or job.exists():
        return (
            f"The trainer left no error in {run_folder.logs}, so it was probably killed: by kill -9, or by the kernel "
            "when memory ran out."
        )
    return (
        f"{job} does not exist, perhaps because not all nodes share its file system. Choose another folder with "
        "hydra.run.dir or hydra.sweep.dir."
    )


def _last_batch(run_folder: RunFolder) -> str:
    try:
        ago_s = time.time() - run_folder.metrics.stat().st_mtime
    except OSError:
        return "no batch yet"
    # The clock of another host set the file's time.
    ahead = f"the clock of its host is {-ago_s:.0f} s ahead of this one's"
    return f"last batch {ago_s:.0f} s ago" if ago_s > -1 else f"time of the last batch unknown ({ahead})"
