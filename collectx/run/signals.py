"""Raises SIGINT, SIGTERM and SIGHUP as one exception in the main thread, and protects blocks that must finish.

    running      the first signal raises `Stopped` in the main thread; the second is only counted, so that closing
                 continues; the third raises a second time, for a user who does not want to wait
    held         a signal raises at the end of the block, which must not be interrupted
    shielded     the first signal is only counted too
    sealed       nothing raises: the result is being written and shown

Used by execution.py, in the trainer's process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

PATIENCE = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal stops the run. A `KeyboardInterrupt`, so that no `except Exception` in user code catches it. `signal` is
    its name, as in "SIGTERM"."""

    def __init__(self, signum: int):
        self.signal = signal.Signals(signum).name
        super().__init__(self.signal)


class Signals:
    """Handles SIGINT, SIGTERM and SIGHUP while the `with` block lasts. Outside the main thread, where Python allows no
    handlers, it does nothing; a signal that the parent process set to be ignored (`nohup`) stays ignored. After a
    SIGHUP of a closed terminal, output to it is dropped. `last` is the signal that came last, or None."""

    def __init__(self) -> None:
        self._old_handlers: dict[int, Any] = {}
        self._count = 0
        self.last: int | None = None
        self._raise_at = 1
        self._shielded = False
        self._sealed = False
        self._held = self._is_pending = False
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._old_handlers[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        self._old_handlers.clear()

    @contextmanager
    def ignored_by_children(self) -> Iterator[None]:
        """Processes that start in the block ignore SIGINT and SIGHUP, which a terminal sends to all of its processes:
        the trainer closes them, and one that is still importing would die with a traceback. A signal in the block is
        lost."""
        ignored = [signum for signum in (signal.SIGINT, signal.SIGHUP) if signum in self._old_handlers]
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)
        try:
            yield
        finally:
            for signum in ignored:
                signal.signal(signum, self._handle)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """A signal in the block raises at its end, unless another exception does."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._is_pending and self.last is not None:
            self._is_pending = False
            raise Stopped(self.last)

    def check(self) -> None:
        """Raises `Stopped` if a signal came and its exception was lost, as happens in a `__del__`."""
        if self.last is not None and not self._shielded:
            raise Stopped(self.last)

    def shield(self) -> None:
        """From now on only a third signal raises."""
        self._shielded = True
        self._raise_at = max(self._raise_at, PATIENCE)

    def seal(self) -> None:
        """From now on no signal raises."""
        self._shielded = self._sealed = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        self.last = signum
        if signum == signal.SIGHUP:
            _drop_output(self._terminals)
        if not self._sealed and self._count >= self._raise_at:
            # The second signal of an impatient user must not interrupt the closing that the first one starts.
            self._raise_at = self._count + PATIENCE - 1
            if self._held:
                self._is_pending = True
                return
            raise Stopped(signum)


def _drop_output(terminals: Sequence[int]) -> None:
    """Redirects the descriptors of closed terminals to /dev/null, as writing to them would raise."""
    closed = [descriptor for descriptor in terminals if not os.isatty(descriptor)]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in closed:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
