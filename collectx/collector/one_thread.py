"""Refuses the use of a collector by two threads at once. In the trainer's process."""

from __future__ import annotations

import threading


class OneThread:
    """A block that raises if another thread is in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this collector is in use by another thread, which waits for a batch or an answer, or by the hook or "
                "env that calls it: take its batches in one thread, and pass them to others through a queue.Queue"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
