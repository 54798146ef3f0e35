"""Refuses the use of a collector in a forked process, and by two threads at once."""

from __future__ import annotations

import os
import threading


class Owner:
    """The process that made a collector. A `with` block raises `RuntimeError` in other processes or a second thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_this_process(self) -> bool:
        """Whether this process made the collector; False in a fork of that process."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raises `RuntimeError` if another process made the collector."""
        if not self.is_this_process:
            raise RuntimeError(
                f"this collector belongs to process {self._pid}, from which this one ({os.getpid()}) was forked. "
                "Both would consume the same frames. Make a collector in this process, or send it the batches."
            )

    def __enter__(self) -> None:
        self.check_process()
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this collector is in use by another thread, which waits for a batch or an answer, or by the hook or "
                "env that called it. Take its batches in one thread, and pass them to others through a queue.Queue"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
