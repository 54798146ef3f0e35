"""Ctrl-C and SIGTERM as one exception in the main thread, and a shield around what must be finished.

    running      a signal raises `Stopped` wherever the main thread is
    shielded     a signal is only counted, so that closing and writing the result go on; the third one raises, for the
                 user who will not wait any longer
    sealed       nothing raises: the result is being written

Used by job.py, in the trainer's process. Must not know what is being stopped.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

PATIENCE = 3


class Stopped(KeyboardInterrupt):
    """The run was asked to stop. A `KeyboardInterrupt`, so that no `except Exception` in user code swallows it.

    Attributes:
        signal: name of the signal, as in "SIGTERM".
    """

    def __init__(self, signum: int):
        self.signal = signal.Signals(signum).name
        super().__init__(self.signal)


class Signals:
    """Takes SIGINT and SIGTERM over while the `with` block lasts. Outside the main thread, where Python allows no
    handlers, it does nothing; a signal that the parent process set to be ignored stays ignored."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._count = 0
        self._last: int | None = None
        self._patience = 1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def check(self) -> None:
        """Raises `Stopped` if a signal came and its exception was lost, as happens in a `__del__`."""
        if self._last is not None and self._patience == 1:
            raise Stopped(self._last)

    def shield(self) -> None:
        """From here on only the third signal raises."""
        self._patience = PATIENCE

    def seal(self) -> None:
        """From here on no signal raises."""
        self._patience = 0

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        self._last = signum
        if 0 < self._patience <= self._count:
            raise Stopped(signum)
