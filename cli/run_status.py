"""What became of a run: by its folder, and by SLURM where it is a job. Nothing that is dead is said to run.

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
from collectx.run.folder import RunFolder, write_json

_LAST_LINES = 40
_OVER = {
    "TIMEOUT": "its time limit was reached: ask for more with launcher.time",
    "OUT_OF_MEMORY": "it had too little memory: ask for more with launcher.mem",
    "NODE_FAIL": "it lost a node; with launcher.requeue=true SLURM starts it again",
    "PREEMPTED": "it was preempted by another job; with launcher.requeue=true SLURM starts it again",
    "DEADLINE": "its deadline has passed",
    "BOOT_FAIL": "a node did not boot",
}


@dataclass(frozen=True)
class Fate:
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


def note_job(files: RunFolder, job: str) -> None:
    """Writes down which job runs what is in the folder."""
    write_json(files.job_note, {"job": job, "host": socket.gethostname(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})


def job_of(files: RunFolder) -> str | None:
    """The job that runs, or ran, what is in the folder; None where none did."""
    try:
        return str(json.loads(files.job_note.read_text())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ask(jobs: Iterable[str]) -> Mapping[str, JobState] | LauncherError:
    """What SLURM says of jobs, or that it does not."""
    from collectx.launcher.slurm import commands

    try:
        return commands.states(list(jobs))
    except LauncherError as error:
        return error


def fate(files: RunFolder, job: str, said: Mapping[str, JobState] | LauncherError) -> Fate:
    """What became of a run that is a job, by what `ask` returned."""
    result = files.read_result()
    state = None if isinstance(said, LauncherError) else said.get(job)
    if state is not None and not state.is_over and not state.has_started:
        return Fate("queued", state.reason)
    if result is not None:
        told = of_result(result)
        # A trainer knows only that it was told to end.
        if told.word == "interrupted" and state is not None and state.word in _OVER:
            return Fate(told.word, f"{told.detail}: job {job} ended as {state.word}: {_OVER[state.word]}")
        return told
    if isinstance(said, LauncherError):
        return Fate("unknown", f"{_seen(files)}; SLURM does not say: {said}")
    if state is None and not files.log("job").exists():
        # The first thing that a job does is to begin its log.
        return Fate("interrupted", f"job {job} was cancelled in the queue: SLURM no longer knows it, and it has no log")
    if state is None:
        return Fate("failed", f"SLURM knows no job {job} any more, and it left no result\n{last_words(files)}".rstrip())
    if not state.is_over:
        return Fate("running", f"on {state.node}" if state.node else "")
    word = "interrupted" if state.word == "CANCELLED" else "failed"
    why = _OVER.get(state.word)
    where = f" on {state.node}" if state.node else ""
    first = f"job {job} ended as {state.word}{where}" + (f": {why}" if why else "")
    return Fate(word, first if word == "interrupted" else f"{first}\n{last_words(files)}".rstrip())


def fate_here(files: RunFolder) -> Fate:
    """What became of a run that is no job: whether its process lives can be seen on its own host only."""
    result = files.read_result()
    if result is not None:
        return of_result(result)
    try:
        host = json.loads(files.meta.read_text())["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return Fate("failed", "it left neither a snapshot nor a result")
    if host != socket.gethostname():
        return _by_workers(files, host)
    if _is_open(files.events):
        return Fate("running", f"on {host}")
    return Fate("failed", f"its process has ended without leaving a result\n{last_words(files)}".rstrip())


def _by_workers(files: RunFolder, host: str) -> Fate:
    """What became of a run whose process is on another host: it lives while jobs of its workers do."""
    jobs = files.worker_jobs.read_text().split() if files.worker_jobs.exists() else []
    unknown = f"it was started on {host} and has left no result: ask there"
    if not jobs:
        return Fate("unknown", unknown)
    said = ask(jobs)
    if isinstance(said, LauncherError):
        return Fate("unknown", f"{unknown}; SLURM does not say: {said}")
    living = [job for job, state in said.items() if not state.is_over]
    if not living:
        return Fate("unknown", f"{unknown}; none of its workers' jobs waits or runs")
    return Fate("running", f"on {host}, {_seen(files)}; of its workers' jobs {len(living)} wait or run")


def of_result(result: dict[str, Any]) -> Fate:
    """What `result.json` says."""
    word = str(result.get("status"))
    return Fate(word, "" if word == "completed" else str(result.get("exit_reason", "")))


def last_words(files: RunFolder) -> str:
    """The end of the trainer's log, or of its job's; or that there is none, and what that means."""
    job = files.log("job")
    for log in (files.log("trainer"), job):
        try:
            lines = log.read_text(errors="replace").rstrip().splitlines()
        except OSError:
            continue
        if lines:
            return "\n".join([f"{log} ends:", *(f"  {line}" for line in lines[-_LAST_LINES:])])
    if job_of(files) is None or job.exists():
        return f"{files.logs} has nothing from it: it was killed (kill -9, or by the kernel for want of memory)"
    return (
        f"{job} does not exist: all nodes must share that file system: choose another with hydra.run.dir or "
        "hydra.sweep.dir"
    )


def _seen(files: RunFolder) -> str:
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
