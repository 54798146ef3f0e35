"""Collecting in a background thread, in the trainer's process. Other threads use the collector between two batches,
inside `hold()`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collectx.library.compat import CollectorProperties


class Background:
    """A thread that calls `step` repeatedly.

    Args:
        step: collects one batch; raises `StopIteration` after the last one.
    """

    def __init__(self, step: Callable[[], object]):
        self._step = step
        self._changed = threading.Condition()
        self._num_holders = 0
        self._is_stepping = False
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="collectx-background", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def ends_within(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` seconds for the thread to end; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @contextmanager
    def hold(self, timeout_s: float | None = None) -> Iterator[None]:
        """Waits for the current step; no step is taken inside the block.

        Raises:
            TimeoutError: on entering: the current step took longer than `timeout_s`.
            Exception: on entering: the error that ended the thread, raised once.
        """
        with self._changed:
            self._num_holders += 1
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._is_stepping, timeout_s):
                    raise TimeoutError(f"the current batch was not complete within timeout={timeout_s:g} s")
            self.check()
            yield
        finally:
            with self._changed:
                self._num_holders -= 1
                self._changed.notify_all()

    def stop(self, timeout_s: float | None = None) -> None:
        """Ends the thread after the current step. Idempotent.

        Raises:
            TimeoutError: the current step took longer than `timeout_s`; the thread ends after it.
            Exception: the error that ended the thread, raised once.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the current batch was not complete within timeout={timeout_s:g} s")
        self.check()

    def check(self) -> None:
        """
        Raises:
            Exception: the error that ended the thread, raised once.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            while self._may_step():
                self._step()
        except StopIteration:
            pass
        except BaseException as error:
            self._error = error
        with self._changed:
            self._is_stepping = False
            self._changed.notify_all()

    def _may_step(self) -> bool:
        """Waits while the thread is held; returns False once it is to end."""
        with self._changed:
            self._is_stepping = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._num_holders or self._stopping)
            self._is_stepping = not self._stopping
            return self._is_stepping


class BackgroundCollector(CollectorProperties):
    """`start` and `pause` of a collector. Base class of `collectx.library.base.BaseCollector`, whose `_collect`
    collects one batch, and raises `StopIteration` after the last one."""

    _background: Background | None = None
    _collect: Callable[[], object]

    def start(self) -> None:
        """Starts to collect into `replay_buffer` in a background thread, until `total_frames` or `shutdown`. Returns at
        once. Weights may be published meanwhile.

        Raises:
            RuntimeError: the collector has no replay buffer, or was started before.
        """
        self._core.owner.check_process()
        if self.replay_buffer is None:
            raise RuntimeError("start() collects into a replay buffer: pass replay_buffer=... to the constructor")
        if self._background is not None:
            raise RuntimeError("start() was called before")
        self._background = Background(self._collect)

    def is_running(self) -> bool:
        """Whether the background thread is collecting."""
        return self._background is not None and self._background.is_running

    @contextlib.contextmanager
    def pause(self, timeout: float | None = None, *, resume: bool = True) -> Iterator[None]:
        """`with collector.pause():` adds nothing to the replay buffer inside the block. Blocks until the current batch
        is complete. Workers that write to the buffer themselves are idle inside the block; other workers fill their
        free slots.

        Args:
            timeout: seconds to wait for the current batch; None: as long as `worker_timeout_s` allows.
            resume: must be True; `shutdown` ends the collecting.

        Raises:
            ValueError: `resume=False`.
            TimeoutError: on entering the block: the current batch was not complete within `timeout`.
            Exception: on entering the block: the error that ended the background thread, raised once.
        """
        if not resume:
            raise ValueError("resume=False: a pause ends with its block; use shutdown() to end the collecting")
        with self._exclusive(timeout):
            if self._keywords.shared_buffer is not None:
                self._collector.wait_until_idle()
            yield

    def _exclusive(self, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Waits for the current batch of the background thread, and keeps the thread idle inside the block."""
        self._core.owner.check_process()
        return contextlib.nullcontext() if self._background is None else self._background.hold(timeout_s)
