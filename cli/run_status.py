"""What became of a run: by its folder, and by SLURM where it is a job. Nothing that is dead is states to run.

Used by `collectx status` and by a command that follows its jobs.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectx.errors import LauncherError
from collectx.launcher.slurm.worker_job import JobState
from collectx.run.files import write_json
from collectx.run.folder import RunFolder

_LAST_LINES = 40
_END_REASONS = {
    "TIMEOUT": "its time limit was reached: ask for more with launcher.time",
    "OUT_OF_MEMORY": "it had too little memory: ask for more with launcher.mem",
    "NODE_FAIL": "it lost a node; with launcher.requeue=true SLURM starts it again",
    "PREEMPTED": "it was preempted by another job; with launcher.requeue=true SLURM starts it again",
    "DEADLINE": "its deadline has passed",
    "BOOT_FAIL": "a node did not boot",
}


@dataclass(frozen=True)
class RunStatus:
    """What is known of a run.

    Attributes:
        word: completed, failed, interrupted, queued, running, or unknown.
        detail: why, or where; may be empty, may have several lines.
    """

    word: str
    detail: str = ""

    @property
    def is_over(self) -> bool:
        return self.word in ("completed", "failed", "interrupted")


def write_job(files: RunFolder, job: str) -> None:
    """Writes down which job runs what is in the folder."""
    write_json(files.job_note, {"job": job, "host": socket.gethostname(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})


def read_job(files: RunFolder) -> str | None:
    """The job that runs, or ran, what is in the folder; None where none did."""
    try:
        return str(json.loads(files.job_note.read_text())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def query_slurm(jobs: Iterable[str]) -> Mapping[str, JobState] | LauncherError:
    """What SLURM says of jobs, or that it does not."""
    from collectx.launcher.slurm import commands

    try:
        return commands.states(list(jobs))
    except LauncherError as error:
        return error


def status_of(files: RunFolder, job: str, states: Mapping[str, JobState] | LauncherError) -> RunStatus:
    """What became of a run that is a job, by what `ask` returned."""
    result = files.read_result()
    state = None if isinstance(states, LauncherError) else states.get(job)
    if state is not None and not state.is_over and not state.has_started:
        return RunStatus("queued", state.reason)
    if result is not None:
        status = _from_result(result)
        # A trainer knows only that the run was ended.
        if status.word == "interrupted" and state is not None and state.word in _END_REASONS:
            return RunStatus(
                status.word, f"{status.detail}: job {job} ended as {state.word}: {_END_REASONS[state.word]}"
            )
        return status
    if isinstance(states, LauncherError):
        return RunStatus("unknown", f"{_last_batch(files)}; SLURM does not say: {states}")
    if state is None and not files.log("job").exists():
        # The first thing that a job does is to begin its log.
        return RunStatus(
            "interrupted", f"job {job} was cancelled in the queue: SLURM no longer knows it, and it has no log"
        )
    if state is None:
        return RunStatus(
            "failed", f"SLURM knows no job {job} any more, and it left no result\n{_log_tail(files)}".rstrip()
        )
    if not state.is_over:
        return RunStatus("running", f"on {state.node}" if state.node else "")
    word = "interrupted" if state.word == "CANCELLED" else "failed"
    why = _END_REASONS.get(state.word)
    where = f" on {state.node}" if state.node else ""
    first = f"job {job} ended as {state.word}{where}" + (f": {why}" if why else "")
    return RunStatus(word, first if word == "interrupted" else f"{first}\n{_log_tail(files)}".rstrip())


def status_here(files: RunFolder) -> RunStatus:
    """What became of a run that is no job: whether its process lives can be seen on its own host only."""
    result = files.read_result()
    if result is not None:
        return _from_result(result)
    try:
        host = json.loads(files.meta.read_text())["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return RunStatus("failed", "it left neither a snapshot nor a result")
    if host != socket.gethostname():
        return _status_by_workers(files, host)
    if _is_open(files.events):
        return RunStatus("running", f"on {host}")
    return RunStatus("failed", f"its process has ended without leaving a result\n{_log_tail(files)}".rstrip())


def _status_by_workers(files: RunFolder, host: str) -> RunStatus:
    """What became of a run whose process is on another host: it lives while jobs of its workers do."""
    jobs = files.worker_jobs.read_text().split() if files.worker_jobs.exists() else []
    unknown = f"it was started on {host} and has left no result: ask there"
    if not jobs:
        return RunStatus("unknown", unknown)
    states = query_slurm(jobs)
    if isinstance(states, LauncherError):
        return RunStatus("unknown", f"{unknown}; SLURM does not say: {states}")
    living = [job for job, state in states.items() if not state.is_over]
    if not living:
        return RunStatus("unknown", f"{unknown}; none of its workers' jobs waits or runs")
    return RunStatus("running", f"on {host}, {_last_batch(files)}; of its workers' jobs {len(living)} wait or run")


def _from_result(result: dict[str, Any]) -> RunStatus:
    """What `result.json` says."""
    word = str(result.get("status"))
    return RunStatus(word, "" if word == "completed" else str(result.get("exit_reason", "")))


def _log_tail(files: RunFolder) -> str:
    """The end of the trainer's log, or of its job's; or that there is none, and what that means."""
    job = files.log("job")
    for log in (files.log("trainer"), job):
        try:
            lines = log.read_text(errors="replace").rstrip().splitlines()
        except OSError:
            continue
        if lines:
            return "\n".join([f"{log} ends:", *(f"  {line}" for line in lines[-_LAST_LINES:])])
    if read_job(files) is None or job.exists():
        return f"{files.logs} has nothing from it: it was killed (kill -9, or by the kernel for want of memory)"
    return (
        f"{job} does not exist: all nodes must share that file system: choose another with hydra.run.dir or "
        "hydra.sweep.dir"
    )


def _last_batch(files: RunFolder) -> str:
    try:
        age_s = time.time() - files.metrics.stat().st_mtime
    except OSError:
        return "no batch yet"
    return f"last batch {age_s:.0f} s ago"


def _is_open(path: Path) -> bool:
    """Whether a process of this user and this host has the file open, as a living trainer has its events."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(entry) == str(path) for entry in (process / "fd").iterdir()):
                return True
        except OSError:
            continue
    return False
