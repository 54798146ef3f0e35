"""Collecting in the background, as TorchRL's `start()` does: a thread of the trainer's process takes batch after batch
while the rest of the program goes on. Whoever else wants to use the collector meanwhile holds it, between two batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Background:
    """A thread that repeats `step`.

    Args:
        step: takes one batch; False when there are no more.
    """

    def __init__(self, step: Callable[[], bool]):
        self._step = step
        self._changed = threading.Condition()
        self._holders = 0
        self._is_stepping = False
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="collectx-background", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether more batches may come."""
        return self._thread.is_alive()

    def ends_within(self, timeout_s: float) -> bool:
        """Whether the thread is over; blocks until then, for so long at most."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @contextmanager
    def hold(self, timeout_s: float | None = None) -> Iterator[None]:
        """No step is taken inside the block. Waits for the one that is under way.

        Raises:
            TimeoutError: by entering: that is not over within `timeout_s`.
            Exception: what has ended the thread, once.
        """
        with self._changed:
            self._holders += 1
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._is_stepping, timeout_s):
                    raise TimeoutError(f"the batch under way was not complete within timeout={timeout_s:g} s")
            self.check()
            yield
        finally:
            with self._changed:
                self._holders -= 1
                self._changed.notify_all()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends the thread after the step that is under way. Idempotent.

        Raises:
            TimeoutError: that step is not over within `timeout_s`; the thread ends when it is.
            Exception: what has ended the thread, once.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the batch under way was not complete within timeout={timeout_s:g} s")
        self.check()

    def check(self) -> None:
        """
        Raises:
            Exception: what has ended the thread, once.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            with self._changed:
                self._changed.wait_for(lambda: not self._holders or self._stopping)
                self._is_stepping = goes_on = not self._stopping
            try:
                goes_on = goes_on and self._step()
            except BaseException as error:
                self._error, goes_on = error, False
            with self._changed:
                self._is_stepping = False
                self._changed.notify_all()
