"""Protects this process from its surroundings and from user code.

Signal handlers: envs and simulators may install their own when they are made. But the trainer's handlers write a
checkpoint and end the run, and a worker's leave its end to the trainer, so both processes install theirs again. Their
forks, such as the helpers of a trainer or an env, must not have these handlers, so `terminate()` ends them.

Standard streams: closed ones, as from cron and daemons, become /dev/null, and output to a pipe that nobody reads any
more is dropped. The `collectx` command and collectors do this before they open files or start processes.

Cores: OpenMP's variables bind the first thread of each process to the first core, and processes inherit the cores of
the thread that starts them. So the trainer and all workers would share one core.

Time: code in the main thread, such as an env's constructor or `ray.init`, has a limit without progress; `until` waits
for files, jobs and other processes.
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from collectx import progress

_T = TypeVar("_T")

_kept: dict[int, Any] = {}
_noted: set[str] = set()
_note: Callable[[str], None] = print
# Handlers that forks of this process do not have.
_own: dict[int, Any] = {}
# After this time, a message says what the run is waiting for.
_PATIENCE_S = 5.0
# How often code that does not stop is interrupted, and how many seconds it may take to end after each interrupt.
_NUM_INTERRUPTS, _END_S = 3, 2.0
# A process without a handler ignores this signal, so a late one does no harm. A terminal sends it too, when its size
# changes. Not SIGURG, for which workers have a handler of faulthandler, which Python cannot restore.
_SIGNAL = signal.SIGWINCH
# OpenMP's variables that bind threads to cores.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
# How often the time is counted, and modules whose frames show that a debugger or a console waits for its user.
_COUNT_S = 0.5
_DEBUGGERS = {"bdb", "code", "pydevd", "_pydevd_bundle"}


def keep_handlers(handlers: Mapping[int, Any], note: Callable[[str], None]) -> None:
    """Makes `restore_handlers` install these handlers again, which are set now, and call `note` if they were replaced.
    Without handlers, `restore_handlers` does nothing."""
    global _note
    _kept.clear()
    _kept.update(handlers)
    _noted.clear()
    _note = note


def restore_handlers(maker: str) -> None:
    """Installs the kept handlers again, and notes once that `maker`, such as "env.id=CartPole-v1", replaced them. Call
    this after user code made something, such as an env. Does nothing outside the main thread, where Python allows no
    handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    replaced = [signal.Signals(signum).name for signum, ours in _kept.items() if signal.getsignal(signum) != ours]
    for signum, handler in _kept.items():
        signal.signal(signum, handler)  # a C library may have installed one that Python does not see
    text = f"{maker} replaced the handlers of {', '.join(replaced)}. The run needs its own, so it restored them."
    if replaced and text not in _noted:
        _noted.add(text)
        _note(text)


class _Blocked(threading.local):
    """Which of these signals each thread blocked before it forked, and what it had blocked before that."""

    before: tuple[list[int], set[Any]] | None = None


_blocked = _Blocked()


def end_forks_by(*signums: int) -> None:
    """Makes forks of this process begin with the default action of these signals, instead of the handlers that are set
    now. A handler in Python runs between two bytecodes: a signal that comes just before a helper waits in C would be
    lost, and `terminate()` followed by `join()`, as at the end of a Pool, would wait for ever. Replaces the signals of
    the last call."""
    _own.clear()
    _own.update({signum: signal.getsignal(signum) for signum in signums})


def _before_fork() -> None:
    own = [signum for signum, handler in _own.items() if signal.getsignal(signum) == handler]
    _blocked.before = (own, signal.pthread_sigmask(signal.SIG_BLOCK, own)) if own else None


def _after_fork_in_parent() -> None:
    if _blocked.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before[1])


def _after_fork_in_child() -> None:
    _own.clear()
    if _blocked.before is not None:
        own, earlier = _blocked.before
        for signum in own:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _stays(signum: signal.Signals) -> bool:
    """Whether the handler of a signal must not be replaced: it is a C library's, or the parent process ignores the
    signal."""
    current = signal.getsignal(signum)
    is_ignored = current is signal.SIG_IGN and signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return current is None or is_ignored


@contextmanager
def handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handles signals by these handlers in the block, and restores the earlier ones at its end. Has no effect outside
    the main thread, where Python allows no handlers. The handler of a C library stays, as Python cannot restore it. A
    SIGINT, SIGTERM or SIGHUP that the parent process ignores (`nohup`) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = {signum: handler for signum, handler in handlers.items() if not _stays(signum)}
    earlier = {signum: signal.signal(signum, handler) for signum, handler in ours.items()}
    try:
        yield
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)


def until(condition: Callable[[], _T], timeout_s: float, every_s: float) -> _T:
    """Calls `condition` every `every_s` seconds until it returns something true, or `timeout_s` seconds have passed.
    Returns the last result. Calls it at least once."""
    deadline_s = time.monotonic() + timeout_s
    while not (result := condition()) and time.monotonic() < deadline_s:
        time.sleep(every_s)
    return result


def unbind_threads(note: Callable[[str], None]) -> None:
    """Removes OpenMP's variables that bind threads to cores, and calls `note` if there were any. Acts on this process
    only before it imports torch; the message says what to do if that was earlier."""
    names = [name for name in _BINDING if name in os.environ]
    if not names or os.environ.get("OMP_PROC_BIND", "").lower() == "false":
        return
    unset = f"unset {' '.join(names)}"
    for name in names:
        del os.environ[name]
    if "torch" in sys.modules:
        note(f"{names[0]} has bound this process and its workers to one core. Before you start Python: {unset}")
    else:
        note(f"{names[0]} is ignored: it would bind trainer and workers to one core. To silence this: {unset}")


def open_closed() -> None:
    """Opens /dev/null in place of closed standard streams. Otherwise, the next files and sockets would get their
    descriptors, and libraries would write output into them. Leaves open streams alone."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The kernel uses the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, for the rest of the process


def outlive_readers(note: Callable[[str], None]) -> None:
    """Replaces `sys.stdout` and `sys.stderr`, so that output after their reader is gone is dropped instead of raising
    `BrokenPipeError`. Calls `note` once if this happens to standard output. Leaves replaced streams alone, such as
    pytest's."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(
            sys.stdout, lambda: note("standard output was closed, so the command continues without it.")
        )
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(sys.stderr, lambda: None)


class _Output(io.FileIO):
    """Unbuffered output to a descriptor; calls `on_closed` when its reader is gone."""

    def __init__(self, descriptor: int, on_closed: Callable[[], None]):
        super().__init__(descriptor, "wb", closefd=False)
        self._on_closed = on_closed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # Redirects the descriptor, as libraries may write to it too.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            self._on_closed()
            return super().write(data)


def _outliving(stream: Any, on_closed: Callable[[], None]) -> io.TextIOWrapper:
    stream.flush()
    raw = _Output(stream.fileno(), on_closed)
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
    buffer: Any = raw if is_unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def is_debugging() -> bool:
    """Returns whether the main thread is in a debugger: no limit counts, and nothing may draw over its prompt. Any
    thread may call this."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


class _Interrupt(BaseException):
    """Interrupts the block. Not an `Exception`, which retry loops, as in `ray.init`, would catch."""

    def __init__(self, error: TimeoutError):
        super().__init__()
        self.error = error


@contextmanager
def limited(
    what: str,
    option: str,
    timeout_s: float,
    say: Callable[[str], None] | None = None,
    give_up: Callable[[BaseException], object] | None = None,
) -> Iterator[None]:
    """Interrupts the block after `timeout_s` seconds without progress (`collectx.progress`), such as an import or an
    env that was made. Does not count the time in a debugger. Has no effect outside the main thread. Raises
    `TimeoutError` if the limit was reached. The note of the error contains the stack.

    Args:
        what: what messages call the block.
        option: the option that sets the limit.
        say: called, in another thread, with a message that contains the block's stack, if the block makes no
            progress for 5 s.
        give_up: called with the error, in another thread, if the block cannot be interrupted, because it is in C code
            that never returns, or catches the error. Must end the process.
    """
    if threading.current_thread() is not threading.main_thread() or math.isinf(timeout_s):
        yield
        return
    main, is_over, has_ended = threading.get_ident(), threading.Event(), threading.Event()
    # The number of frames that called the block, without this one and the one of `contextmanager`.
    num_outer = len(traceback.extract_stack()) - 2

    def stack(frame: FrameType | None) -> str:
        return "".join(traceback.format_list(traceback.extract_stack(frame)[num_outer:])).rstrip()

    def error(frame: FrameType | None) -> TimeoutError:
        timeout = TimeoutError(
            f"{what} took more than {timeout_s:g} s ({option}={timeout_s:g}). If that is normal, raise {option}."
        )
        timeout.add_note(f"It was at:\n{stack(frame)}")
        return timeout

    def has_ended_within(idle_s: float, limit_s: float) -> bool:
        """Waits until the block has ended, or made no progress for `limit_s` seconds, of which `idle_s` have passed."""
        counts = (*progress.counts,)
        while idle_s < limit_s and not has_ended.wait(wait_s := min(limit_s - idle_s, _COUNT_S)):
            before, counts = counts, (*progress.counts,)
            idle_s = 0.0 if counts != before else idle_s + wait_s * (not is_debugging())
        return has_ended.is_set()

    def watch() -> None:
        patience_s = min(_PATIENCE_S, timeout_s)
        if has_ended_within(0.0, patience_s):
            return
        limit = f"it will be ended after {timeout_s:g} s without progress ({option}={timeout_s:g})"
        if say is not None and timeout_s > patience_s:
            text = stack(sys._current_frames().get(main))
            say(f"{what} has taken more than {patience_s:g} s; {limit}. It is at:\n{text}")
        if has_ended_within(patience_s, timeout_s):
            return
        is_over.set()
        for _ in range(_NUM_INTERRUPTS):
            signal.pthread_kill(main, _SIGNAL)
            if has_ended.wait(_END_S):
                return
        if give_up is not None:
            give_up(error(sys._current_frames().get(main)))

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if is_over.is_set() and not has_ended.is_set():
            raise _Interrupt(error(frame))

    try:
        with handling({_SIGNAL: interrupt}), progress.counting_imports():
            try:
                # The thread may interrupt at once, before the block.
                threading.Thread(target=watch, name="collectx-limit", daemon=True).start()
                yield
            finally:
                has_ended.set()
    except _Interrupt as interruption:
        has_ended.set()
        raise interruption.error from None
