"""`collectx cancel DIR`: ends a run, or the runs of a sweep, and waits for their end.

A run of this host ends by the first signal of its trainer's process, whose id is in the lock file, a job by SIGINT to
its tasks, and by scancel where that is not enough.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from collectx.cli import attach, output, run_status
from collectx.cli.arguments import Arguments, run_subcommand
from collectx.errors import ConfigError, LauncherError
from collectx.launcher.slurm import commands
from collectx.run import RunFolder
from collectx.run.folder import holder

_USAGE = """\
collectx cancel DIR [--now]: end the run in DIR, or all runs of the sweep in DIR, and wait until they have ended.

The trainer completes the batch, writes a checkpoint and ends, within checkpoint.grace_s; `collectx resume` continues
the run. --now ends it at once, as a second signal and scancel do. A run of this machine must be cancelled on its host.

Exit status: 0 all runs have ended, 1 not all in time, 2 wrong usage or one is on another host, 130 Ctrl-C."""

_POLL_S = 0.5
# SLURM's KillWait is 30 s, and its accounting takes a while.
_MARGIN_S = 60.0


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(argv, _USAGE, _cancel, ["now"])


def _cancel(arguments: Arguments) -> int:
    runs = attach.find("cancel", arguments.words)
    living = [run for run, status in zip(runs, attach.statuses(runs), strict=True) if not status.has_ended]
    # The jobs of workers whose trainer is gone.
    orphans = [job for run in runs if run not in living and run.worker_jobs.exists() for job in _worker_jobs(run)]
    jobs = [job for run in living if (job := run_status.read_job(run)) is not None]
    processes: list[int] = []
    elsewhere: list[RunFolder] = []
    for run in living:
        try:
            if run_status.read_job(run) is None:
                processes.append(_process(run))
        except ConfigError as error:
            elsewhere.append(run)
            output.usage_errors(error.problems)
    if ended := len(runs) - len(living):
        output.say(f"{ended} of {len(runs)} runs had ended" if len(runs) > 1 else f"{runs[0].path} had ended")
    for pid in processes:
        for _ in range(2 if "now" in arguments.flags else 1):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            time.sleep(_POLL_S)
    are_orphans_ended = _end(commands.cancel, orphans)
    _end(commands.cancel if "now" in arguments.flags else commands.interrupt, jobs)  # `_wait` sees what is left
    have_ended = _wait([run for run in living if run not in elsewhere])
    return 2 if elsewhere else int(not (have_ended and are_orphans_ended))


def _end(end: Callable[[Sequence[str]], None], jobs: Sequence[str]) -> bool:
    """Ends jobs by a function of `commands`; returns whether it did not fail, which is printed."""
    try:
        if jobs:
            end(jobs)
    except LauncherError as error:
        output.error(f"not all jobs were cancelled: {error}")
        return False
    return True


def _wait(runs: Sequence[RunFolder]) -> bool:
    """Waits until the runs have ended, and cancels the jobs of those that take too long; returns whether all have
    ended."""
    grace_s = max((attach.submitted(run).grace_s for run in runs), default=0.0)
    begin_s, is_cancelled = time.monotonic(), False
    while runs:
        known = zip(runs, attach.statuses(runs), strict=True)
        for run, status in known:
            if status.has_ended:
                output.say(f"{run.path}: {status.status}: {status.detail}".rstrip(": "))
                runs = [other for other in runs if other is not run]
        waited_s = time.monotonic() - begin_s
        if waited_s > grace_s and not is_cancelled:
            is_cancelled = True
            _end(commands.cancel, [job for run in runs if (job := run_status.read_job(run)) is not None])
        if runs and waited_s > grace_s + _MARGIN_S:
            rule = f"{grace_s + _MARGIN_S:g} s (checkpoint.grace_s + collector.close_timeout_s + a minute)"
            for run in runs:
                output.error(f"{run.path} has not ended within {rule}: add --now.")
            return False
        time.sleep(_POLL_S if runs else 0)
    return True


def _process(run: RunFolder) -> int:
    """The id of the trainer's process.

    Raises:
        ConfigError: it is not a process of this host, or one of another user.
    """
    pid, host = holder(run)
    if pid is None:
        raise ConfigError([f"cancel: {run.path}: no process of this host holds its lock: cancel it on {host}."])
    if (user := psutil.Process(pid).uids().real) != os.getuid():
        raise ConfigError([f"cancel: {run.path}: process {pid} is one of user {user}: cancel it as that user."])
    return pid


def _worker_jobs(run: RunFolder) -> list[str]:
    jobs = run.worker_jobs.read_text().split()
    states = run_status.query_slurm(jobs)
    return [job for job, state in states.items() if not state.is_over] if isinstance(states, dict) else []
