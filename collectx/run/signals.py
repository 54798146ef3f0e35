"""Turns SIGINT, SIGTERM and SIGHUP into one exception in the main thread, and protects blocks that must finish. SIGUSR1
and SIGUSR2 request a checkpoint. If one of these two already has a Python handler, such as submitit's, which requeues
the job, the signal ends the run as SIGINT does, and the handler is called when the run has ended.

    running      the first signal raises `RunStopped` in the main thread; the second is only counted, so that closing
                 continues; the third interrupts closing
    held         a signal raises at the end of the block, which must not be interrupted
    deferred     the first signal lets the run complete its batch, see `check`; after some seconds, or at the second
                 signal, it raises
    shielded     the first and the second signal are only counted
    sealed       nothing raises: the result is being written and shown

Python drops an exception that a handler raises within a callback of the garbage collector, of a weak reference or of an
import. Such a signal is sent again.
"""

from __future__ import annotations

import _thread
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from collectx import process
from collectx.transport.connections import LONGEST_WAIT_S

PATIENCE = 3
# How often a handler begins again that others interrupt: each process of a DataLoader may do so once.
_NUM_TRIES = 100
# How many seconds the end of the `with` block waits for a note, whose terminal or pipe may be blocked.
_NOTE_S = 2.0
# How long a callback that dropped an exception may take to end before the signal is sent again.
_AGAIN_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Another thread interrupts the main thread with it. Without a handler, it is ignored.
_INTERRUPT = signal.SIGURG
_REQUESTS = (signal.SIGUSR1, signal.SIGUSR2)


def ignore_requests() -> None:
    """Ignores SIGUSR1 and SIGUSR2, which would end this process, while no `Signals` handles them. Processes that it
    starts ignore them too."""
    for signum in _REQUESTS:
        signal.signal(signum, signal.SIG_IGN)


class RunStopped(KeyboardInterrupt):
    """A signal stops the run. A `KeyboardInterrupt`, so that no `except Exception` in user code catches it. `signal` is
    the signal's name, such as "SIGTERM"."""

    def __init__(self, signum: int):
        self.signal = signal.Signals(signum).name
        super().__init__(self.signal)


class Interrupted(KeyboardInterrupt):
    """Another thread has called `Signals.interrupt`. A `KeyboardInterrupt`, as `RunStopped`."""


class Signals:
    """Handles SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 inside the `with` block. Does nothing outside the main
    thread, where Python allows no handlers. A SIGINT, SIGTERM or SIGHUP that the parent process ignores (`nohup`) stays
    ignored. A handler that is not a Python function stays, as Python cannot restore it. After a SIGHUP of a closed
    terminal, output to the terminal is dropped. `note` is called if user code replaced a handler, see
    `collectx.process`.

    Attributes:
        last: the number of the last signal; None before the first.
        is_checkpoint_requested: whether SIGUSR1 or SIGUSR2 came; the reader resets it.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self._note_replaced = note
        self._old_handlers: dict[int, Any] = {}
        self._count = 0
        self._pid = os.getpid()
        self.last: int | None = None
        self._raise_at = 1
        self._shielded = False
        self._sealed = False
        self._held, self._is_pending = 0, False
        self._grace_s = 0.0
        self._note: Callable[[], None] = lambda: None
        # For the thread that waits for the first deferred signal; None ends it.
        self._deferred: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_checkpoint_requested = False
        # The signal whose earlier handler is called at the end.
        self._requeue_signal: int | None = None
        self._old_hook: Callable[[Any], Any] | None = None
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._old_handlers[signum] = signal.signal(signum, self._handle)
            for signum in _REQUESTS:
                earlier = signal.getsignal(signum)
                is_free = earlier in (signal.SIG_DFL, signal.SIG_IGN)
                if earlier is not None:
                    handler = self._request_checkpoint if is_free else self._stop_for_requeue
                    self._old_handlers[signum] = signal.signal(signum, handler)
            self._old_handlers[_INTERRUPT] = signal.signal(_INTERRUPT, self._raise_interrupted)
            self._old_hook, sys.unraisablehook = sys.unraisablehook, self._send_again
            ours = {signum: signal.getsignal(signum) for signum in self._old_handlers}
            process.keep_handlers(ours, self._note_replaced)
            process.end_forks_by(*ours.keys() & {signal.SIGTERM})
        return self

    def __exit__(self, *error: object) -> None:
        self._end_grace()
        if self._thread is not None:
            self._thread.join(_NOTE_S)
        if self._old_hook is not None:
            sys.unraisablehook, self._old_hook = self._old_hook, None
        process.keep_handlers({}, self._note_replaced)
        process.end_forks_by()
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        requeue = self._old_handlers.get(self._requeue_signal or 0)
        self._old_handlers.clear()
        if callable(requeue):
            requeue(self._requeue_signal, None)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Makes a signal in the block raise at the end of the outermost block, unless another exception does."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            is_pending = self._is_pending and not self._held
            self._is_pending &= not is_pending
        if is_pending:
            raise Interrupted if self.last is None else RunStopped(self.last)

    def defer(self, grace_s: float, note: Callable[[], None]) -> None:
        """Defers the first signal: from now on it raises in `check` only, or after `grace_s` seconds. When the signal
        comes, `note` is called in another thread. The end of the `with` block waits for that thread, up to 2 s; a
        slower thread ends with the process."""
        self._grace_s, self._note = min(grace_s, LONGEST_WAIT_S), note
        if grace_s and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="collectx-grace", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        """Waits for the first deferred signal, calls `note`, and sends the signal again after `grace_s` seconds. A
        handler must not start threads itself: it may have interrupted the start of another one, or be interrupted by a
        handler that raises, as a DataLoader's does for SIGCHLD."""
        signum = self._deferred.get()
        if signum is None:
            return
        note = threading.Thread(target=self._note, name="collectx-note", daemon=True)
        note.start()
        try:
            self._deferred.get(timeout=self._grace_s)
        except queue.Empty:
            # To the main thread, which may wait for a worker.
            signal.pthread_kill(threading.main_thread().ident or 0, signum)
        note.join(_NOTE_S)

    def check(self) -> None:
        """Raises `RunStopped` if a signal is pending."""
        if self.last is not None and not self._shielded:
            self._end_grace()
            raise RunStopped(self.last)

    def shield(self) -> None:
        """From now on, only a third signal raises."""
        self._end_grace()
        self._shielded = True
        self._raise_at = max(self._raise_at, PATIENCE)

    def seal(self) -> None:
        """From now on, no signal raises."""
        self._shielded = self._sealed = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        count, error = self._count + 1, None
        for _ in range(_NUM_TRIES):
            try:
                self._receive(signum, count)
                break
            except RunStopped:
                raise
            except BaseException as raised:
                # Another handler interrupted this one: a DataLoader's raises when the same signal ends its processes.
                error = raised
        if error is not None:
            raise error

    def _receive(self, signum: int, count: int) -> None:
        """Handles a signal, the `count`-th one. May be called again for the same signal."""
        if os.getpid() != self._pid:
            # An env or a trainer forked this process. Ctrl-C and a closed terminal signal such helpers too, but the
            # trainer needs them to finish its batch; the second signal ends them. A helper has no job to requeue.
            old = self._old_handlers.get(signum, signal.SIG_DFL)
            signal.signal(signum, signal.SIG_IGN if signum in _REQUESTS else old)
            return
        self._count = count
        self.last = signum
        if signum == signal.SIGHUP:
            _drop_output(self._terminals)
        if self._grace_s and self._count == 1:
            self._deferred.put(signum)
            return
        if not self._sealed and self._count >= self._raise_at:
            # The second signal of an impatient user must not interrupt the closing that the first one starts.
            self._raise_at = self._count + PATIENCE - 1
            if self._held:
                self._is_pending = True
                return
            raise RunStopped(signum)

    def interrupt(self) -> None:
        """Raises `Interrupted` in the main thread, unless the run is ending. Any thread may call it."""
        if _INTERRUPT in self._old_handlers:
            signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)

    def _raise_interrupted(self, signum: int, frame: FrameType | None) -> None:
        if self._shielded or os.getpid() != self._pid:
            return
        if not self._held:
            raise Interrupted
        self._is_pending = True

    def _send_again(self, dropped: Any) -> None:
        """Sends a signal again whose exception Python has dropped; tells of other dropped exceptions as before."""
        error, old_hook = dropped.exc_value, self._old_hook
        if not isinstance(error, Interrupted | RunStopped) or os.getpid() != self._pid:
            (old_hook or sys.__unraisablehook__)(dropped)
            return
        signum = _INTERRUPT
        if isinstance(error, RunStopped):
            # As it raised nothing, the first signal that comes now counts as the first.
            signum, self._raise_at = signal.Signals[error.signal], 1

        def send() -> None:
            time.sleep(_AGAIN_S)
            if self._old_hook is not None:
                signal.pthread_kill(threading.main_thread().ident or 0, signum)

        # Not `Thread.start`, which waits for locks that the main thread may hold here.
        _thread.start_new_thread(send, ())

    def _stop_for_requeue(self, signum: int, frame: FrameType | None) -> None:
        is_ending = self._count > 0 and self._requeue_signal is None
        if os.getpid() == self._pid:
            self._requeue_signal = signum
        if not is_ending:  # another signal is already ending the run, and this one is no reason to hurry
            self._handle(signum, frame)

    def _request_checkpoint(self, signum: int, frame: FrameType | None) -> None:
        self.is_checkpoint_requested = True

    def _end_grace(self) -> None:
        self._grace_s = 0.0
        self._deferred.put(None)


def _drop_output(terminals: Sequence[int]) -> None:
    """Redirects the descriptors of closed terminals to /dev/null, as writing to them would raise."""
    closed = [descriptor for descriptor in terminals if not os.isatty(descriptor)]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in closed:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
