"""Ends runs, and waits for their end.

A signal ends the trainer of a run on this host, whose process id is in the lock file. A job ends by SIGINT to its
tasks, or by scancel if that does not suffice.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from collectx.errors import ConfigError, LauncherError
from collectx.jobs.status import NamedRun, named_run, query_workers, read_job, statuses
from collectx.place.slurm import commands
from collectx.process import until
from collectx.run import RunFolder
from collectx.run.folder.layout import holder
from collectx.run.terminal import printing

_POLL_S = 0.5
# SLURM's KillWait is 30 s, and its accounting is slow.
_MARGIN_S = 60.0


def cancel(runs: Sequence[RunFolder], is_now: bool) -> tuple[bool, bool]:
    """Ends runs, and prints how each one ended; blocks until they have ended, or take too long. With `is_now`, ends
    them at once, without a checkpoint. Returns (may_end_all, have_ended): whether this process may end all of the runs,
    and whether those that it may end have ended."""
    # Everything is read before the first signal, which may end a run before it writes its configuration.
    living = [run for run, status in zip(runs, statuses(runs), strict=True) if not status.has_ended]
    # Jobs of workers whose trainer is gone.
    states = [query_workers(run) for run in runs if run not in living]
    known = [each for each in states if not isinstance(each, LauncherError)]
    orphans = [job for each in known for job, state in each.items() if not state.is_over]
    if ended := len(runs) - len(living):
        finished = (
            f"{ended} of {len(runs)} runs {'has' if ended == 1 else 'have'}"
            if len(runs) > 1
            else f"the run in {runs[0].path} has"
        )
        printing.say(f"{finished} already ended{', so there is nothing to cancel' if not living else ''}.")
    jobs: list[str] = []
    processes: list[int] = []
    mine: list[NamedRun] = []
    for run in living:
        named = named_run(run)
        try:
            if (job := read_job(run)) is not None:
                jobs.append(job)
            elif (pid := _process(run)) is not None:
                processes.append(pid)
            mine.append(named)
        except ConfigError as error:
            printing.error(f"cancel: {error}")
    for pid in processes:
        for _ in range(2 if is_now else 1):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            time.sleep(_POLL_S)
    are_orphans_ended = end_jobs(commands.cancel, orphans)
    may_end_all = len(mine) == len(living)
    # Jobs that SLURM does not end, such as another user's, are not waited for.
    if not (are_jobs_ending := end_jobs(commands.cancel if is_now else commands.interrupt, jobs)):
        mine = [run for run in mine if read_job(run.run_folder) is None]
    return may_end_all, _wait(mine, is_now) and are_orphans_ended and are_jobs_ending


def end_jobs(end: Callable[[Sequence[str]], None], jobs: Sequence[str]) -> bool:
    """Ends jobs by `commands.cancel` or `commands.interrupt`; returns whether that succeeded, and prints why not."""
    try:
        if jobs:
            end(jobs)
    except LauncherError as error:
        reason = str(error).removesuffix(".")
        printing.error(f"could not end every job: {reason}. To see which are left: collectx status")
        return False
    return True


def _wait(named: Sequence[NamedRun], is_now: bool) -> bool:
    """Waits for the end of runs, and cancels jobs that take too long; returns whether all runs have ended."""
    grace_s = max((run.grace_s for run in named), default=0.0)
    runs = [run.run_folder for run in named]

    def have_ended() -> bool:
        """Prints how runs have ended, and removes them from `runs`; returns whether none is left."""
        for run, status in list(zip(runs, statuses(runs), strict=True)):
            if status.has_ended:
                printing.say(f"{run.path}: {status.status}: {status.detail}".rstrip(": "))
                runs.remove(run)
        return not runs

    if until(have_ended, grace_s, _POLL_S):
        return True
    end_jobs(commands.cancel, [job for run in runs if (job := read_job(run)) is not None])
    if until(have_ended, _MARGIN_S, _POLL_S):
        return True
    rule = f"{grace_s + _MARGIN_S:g} s (checkpoint.grace_s + collector.close_timeout_s + a minute)"
    advice = "To see its state: collectx status" if is_now else "To end it at once, add --now"
    for run in runs:
        printing.error(f"{run.path} did not end within {rule}. {advice}.")
    return False


def _process(run: RunFolder) -> int | None:
    """Returns the id of the trainer's process; None if the run ended meanwhile."""
    pid, host = holder(run)
    if pid is None and statuses([run])[0].has_ended:
        return None
    if pid is None and host == socket.gethostname():
        why = "its process is not visible here, or belongs to another user"
        raise ConfigError(f"cannot cancel {run.path}, because {why}. Cancel it where it runs, as its user.")
    if pid is None:
        raise ConfigError(f"cannot cancel {run.path} from this host. Use collectx cancel on {host}.")
    try:
        user = psutil.Process(pid).uids().real
    except psutil.NoSuchProcess:
        return None
    if user != os.getuid():
        raise ConfigError(f"cannot cancel {run.path}: process {pid} belongs to user {user}. Cancel it as that user.")
    return pid
