"""Ends the processes that envs start, and the descendants of these, together with the worker that steps the envs.

On Linux every worker carries a mark. All its descendants inherit it, also those that lead a session of their own or
whose parent has ended. The mark is the soft limit of file locks (RLIMIT_LOCKS), which Linux keeps for each process and,
since 2.4.25, uses for nothing. On other systems a worker leads a process group.

In the trainer's process, other threads start processes too, as loggers do, so the mark is not enough. There the thread
that runs envs also gets an I/O priority of its own, which Linux keeps for each thread, and which its child processes
inherit. Only processes with both mark and priority are ended.

Who ends them: the worker, if it is not killed; the process that started the worker, when it notices the worker's end;
and the fork server, when that process is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Container, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil

# The environment variable by which a process tells its fork server the first of its marks.
VARIABLE = "COLLECTX_FIRST_MARK"
# A terminal or a scheduler sends these to all processes. Only the trainer acts on them, and closes its workers.
SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LIMIT, _HAS_MARKS = 10, sys.platform == "linux"
_system_call: Any = ctypes.CDLL(None).syscall if _HAS_MARKS else None
_prctl: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
# Each process chooses a range of this many marks at random. Even marks: worker processes. Odd marks: envs in a
# thread of this process.
_NUM_MARKS = 1 << 20
# The numbers of ioprio_get(2) and ioprio_set(2), for which the C library has no functions. An I/O priority has a class,
# in the bits from 13 on, and a level. A thread that runs envs has level 5 of the class "best effort", one below the
# default.
_IOPRIO_GET, _IOPRIO_SET = {"x86_64": (252, 251), "aarch64": (31, 30)}.get(platform.machine(), (None, None))
_NO_CLASS, _BEST_EFFORT = 0, 2
_ENV_PRIORITY = _BEST_EFFORT << 13 | 5
# Seconds that a process may take to end after SIGTERM, and after SIGKILL; and the first pause between two looks.
_TERMINATE_S, _KILL_S, _PAUSE_S = 1.0, 1.0, 0.002


def end_with_parent(signum: int) -> None:
    """Makes Linux send this signal to this process when its parent ends, also if that is killed. Does nothing on other
    systems. May be a `preexec_fn` of `subprocess`."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signum)


@functools.cache
def _given(process: int) -> tuple[range, Iterator[int], Iterator[int]]:
    marks = marks_from(secrets.randbits(40) * _NUM_MARKS)
    return marks, iter(marks[2::2]), iter(marks[1::2])


def marks_from(first: int) -> range:
    """Returns the range of marks that a process gives; the first one, `first`, is its fork server's."""
    return range(first, first + _NUM_MARKS)


def own_marks() -> range:
    """Returns the marks that this process gives."""
    return _given(os.getpid())[0]


def new_mark() -> int:
    """Returns a mark for a worker of this process."""
    return next(_given(os.getpid())[1])


def mark_process(mark: int) -> None:
    """Sets the mark of this process, which later child processes inherit. Does nothing on systems without marks."""
    if _HAS_MARKS:
        with contextlib.suppress(OSError, ValueError):  # a sandbox refuses it
            resource.setrlimit(_LIMIT, (mark, resource.getrlimit(_LIMIT)[1]))


def _priority(thread: int = 0) -> int:
    """Returns the I/O priority of a thread, or of a process's main thread (0: of this thread); -1 if it cannot be
    read."""
    return -1 if _IOPRIO_GET is None else _system_call(_IOPRIO_GET, 1, thread)


def _set_priority(priority: int) -> bool:
    """Sets the I/O priority of this thread; returns False if that is not possible."""
    return _system_call(_IOPRIO_SET, 1, 0, priority) == 0


@contextlib.contextmanager
def marked(mark: int) -> Iterator[None]:
    """A worker runs in the block: marks this process, and ends after the block what the worker started."""
    mark_process(mark)
    try:
        yield
    finally:
        end([[mark]])


class EnvProcesses:
    """The processes that envs start within this process, if it carries no mark: a trainer, or a worker that SLURM, MPI
    or Ray has started. After each of the first `num_looks` blocks of `running`, looks for such processes. If there are
    any, starts a guard process, which ends them when this process is killed."""

    def __init__(self, num_looks: int = 2):
        self._mark = next(_given(os.getpid())[2])
        self._looks = num_looks
        self._guard: subprocess.Popen | None = None
        _ended_at_exit(os.getpid()).append([self._mark])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The processes that this thread starts within the block count as the envs'; those that other threads start
        meanwhile do not."""
        earlier = resource.getrlimit(_LIMIT)[0] if _HAS_MARKS else _NUM_MARKS
        priority = _priority()
        # A user may have chosen a class; some kernels name the default one.
        has_other_class = priority >> 13 not in (_NO_CLASS, _BEST_EFFORT)
        if earlier >= _NUM_MARKS or has_other_class or priority == _ENV_PRIORITY or not _set_priority(_ENV_PRIORITY):
            yield
            return
        mark_process(self._mark)
        try:
            yield
            if self._looks:
                self._looks -= 1
                if with_mark([[self._mark]]):
                    self._looks = 0
                    self._start_guard()
        finally:
            mark_process(earlier)
            _set_priority(priority if priority >> 13 == _BEST_EFFORT else 0)

    def _start_guard(self) -> None:
        """Starts the guard process, which ends the envs' processes when this one is killed."""
        self._guard = subprocess.Popen(
            [sys.executable, __file__, str(self._mark)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """Ends the processes that the envs started; blocks until then. Idempotent."""
        end([[self._mark]])
        if self._guard is not None:
            self._guard.communicate()


@contextlib.contextmanager
def ending_env_processes() -> Iterator[None]:
    """The block makes an env and closes it. Ends the processes that the env started, after the block."""
    processes = EnvProcesses(num_looks=0)
    try:
        with processes.running():
            yield
    finally:
        processes.end()


@functools.cache
def _ended_at_exit(process: int) -> list[list[int]]:
    """Returns the marks that this process ends when it exits. A process that was forked from it may run its exit
    handlers."""
    marks: list[list[int]] = []
    atexit.register(lambda: end(marks) if os.getpid() == process else None)
    return marks


def end(marks: Sequence[Container[int]], groups: Collection[int] = ()) -> None:
    """Ends the processes with these marks, other than this one: with SIGTERM, and those that are left after a second
    with SIGKILL. Blocks until they have ended, for two seconds at most. `groups` are the process groups that are killed
    on systems without marks."""
    if not _HAS_MARKS:
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        return
    began_s, pause_s, terminated = time.monotonic(), _PAUSE_S, set[int]()
    while left := with_mark(marks):
        waited_s = time.monotonic() - began_s
        if waited_s > _TERMINATE_S + _KILL_S:
            return
        is_late = waited_s > _TERMINATE_S
        for pid in left if is_late else left - terminated:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        terminated |= left
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def with_mark(marks: Sequence[Container[int]]) -> set[int]:
    """Returns the processes with these marks that have not ended. Takes 3 µs for each process of the machine."""
    server: Any = forkserver._forkserver
    tracker: Any = resource_tracker._resource_tracker
    spared, found = (os.getpid(), server._forkserver_pid, tracker._pid), set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError, psutil.Error):  # it has ended, or is another user's
            mark = resource.prlimit(pid, _LIMIT)[0]
            is_marked = pid not in spared and any(mark in each for each in marks)
            if mark % 2 and is_marked:
                is_marked = _priority(pid) == _ENV_PRIORITY
            if is_marked and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


if __name__ == "__main__":  # the process of `EnvProcesses`
    # Without a parent: SLURM's proctrack/linuxproc would kill it together with a worker that hangs.
    if os.fork() == 0:
        sys.stdin.read()
        end([[int(sys.argv[1])]])
