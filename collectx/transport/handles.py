"""Started worker processes: the interface of a handle, which every launcher implements; how processes are ended; and
the errors of those that fail."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from collectx.config.problem import setting
from collectx.errors import JobEnded, WorkerDied, WorkerTimeout
from collectx.fork_server import descendants
from collectx.transport.connections import LONGEST_WAIT_S

# An option, and its value in seconds.
Limit: TypeAlias = tuple[str, float]

# Seconds that processes may take to end after a signal.
_SIGNAL_S = 1.0
# The signals of crashes.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Handle(Protocol):
    """A started worker process, with the interface of `multiprocessing.Process`.

    Attributes:
        sentinel: a file descriptor that becomes readable when the process ends; -1 without one.
        pid: None for SLURM jobs, tasks and steps, and for Ray actors. Their end is noticed late, so the supervisor does
            not wait for it. A process of this machine leads a process group, and may have a `mark`; see
            `collectx.fork_server.descendants`.
        exitcode: None while the process runs.
    """

    @property
    def sentinel(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def end_processes(handles: Sequence[Handle], timeout_s: float) -> None:
    """Waits up to `timeout_s` seconds until the processes have ended. Then sends SIGTERM to those on other hosts; those
    of this machine ignore it. A second later, kills all that are left. Also ends what the processes of this machine
    have started.
    """
    _join(handles, timeout_s)
    if remote := [handle for handle in handles if handle.pid is None and handle.exitcode is None]:
        for handle in remote:
            handle.terminate()
        _join(remote, _SIGNAL_S)
    for handle in handles:
        if handle.exitcode is None:
            handle.kill()
    _join(handles, _SIGNAL_S)
    marks = {mark for handle in handles if (mark := getattr(handle, "mark", None)) is not None}
    descendants.end([marks], [handle.pid for handle in handles if handle.pid is not None])


def _join(handles: Sequence[Handle], timeout_s: float) -> None:
    deadline = time.monotonic() + min(timeout_s, LONGEST_WAIT_S)
    for handle in handles:
        handle.join(max(0.0, deadline - time.monotonic()))


def timeout_error(name: str, has_joined: bool, limit: Limit, progress: str, stacks: str = "") -> WorkerTimeout:
    """Returns the error of a worker that has exceeded a timeout. `progress` is a sentence about how far the worker has
    come."""
    option, limit_s = setting(limit[0]), limit[1]
    if has_joined:
        what, longer = "made no progress for", "If one reset or step of its envs can take longer"
        how = progress
    else:
        what, longer = "has not joined after", "To wait longer"
        how = (
            "It may still be queued, be slow to start, or be unable to reach the trainer: see its log. Workers on "
            f"other hosts need open TCP ports, and perhaps another network ({setting('backend.interface')})"
        )
    text = f"{name} {what} {limit_s:g} s ({option}={limit_s:g}). {how}. {longer}, raise {option}."
    return WorkerTimeout(f"{text}{stacks and ' '}{stacks}")


def death_error(
    name: str, has_joined: bool, handle: Handle | None, join_timeout_s: float, error: Exception | None
) -> WorkerDied | JobEnded:
    """Returns the error of a worker whose process or connection has ended. If it is a process of this machine, blocks
    until it has ended, up to `join_timeout_s` seconds. `error` is the error that a read from its connection raised."""
    if handle is None or handle.pid is None:
        if (scheduler := getattr(handle, "ended_by", None)) is not None:
            return JobEnded(
                f"{name} is gone, because {scheduler} ended its job. Possible causes: it was preempted or "
                "cancelled, or it reached its time limit."
            )
        if not has_joined:
            return WorkerDied(f"{name} ended before it joined the trainer. Its log may say why.")
        cause = "" if error is None or isinstance(error, EOFError) else f" ({error})"
        return WorkerDied(
            f"{name} is gone{cause}: its connection broke before it reported an error. Possible causes: it was killed, "
            "ran out of memory, crashed in native code of the env, or its host was lost."
        )
    handle.join(join_timeout_s)
    code = handle.exitcode
    how = "is still running but closed its connection" if code is None else f"ended with exit code {code}"
    causes = "it was killed, ran out of memory, or crashed in native code of the env"
    if code is not None and code < 0:
        number = -code
        how = f"was killed by signal {number}"
        with suppress(ValueError):
            how += f" ({signal.Signals(number).name})"
        causes = "another process sent the signal"
        if number == signal.SIGKILL:
            causes = f"memory ran out, or {causes}"
        elif number in _CRASHES:
            causes = f"native code of the env crashed, or {causes}"
    if code is not None and code >= 0:
        causes = "a call of os._exit, or an exit in native code of the env"
    if code == 1:  # Python's exit code after a traceback
        script = 'a script that makes a collector outside of its `if __name__ == "__main__":`'
        causes = f"a call of os._exit, an exit in native code of the env, or {script}"
    who = f"{name[:-1]}; pid {handle.pid})" if name.endswith(")") else f"{name} (pid {handle.pid})"
    return WorkerDied(f"{who} {how} without reporting an error. Possible causes: {causes}.")
