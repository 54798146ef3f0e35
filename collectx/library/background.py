"""The thread that steps a collector's envs in the background, for `start()` and `async for`. Other threads use the
collector between two of its batches, within `hold()`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

from collectx.transport.connections import LONGEST_WAIT_S

_Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


class StepThread:
    """Calls functions one after another in a daemon thread, from the first call until `call_last`, or until this object
    is garbage-collected. `call_last` closes the envs in the thread that stepped them: some, such as those with a
    connection to SQLite, may only be used by one thread."""

    def __init__(self) -> None:
        self._calls: _Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end = weakref.finalize(self, self._calls.put, None)
        # Not at Python's exit, because the thread may have to close envs then.
        self._end.atexit = False

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, for example as a hook."""
        return self._thread is threading.current_thread()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Queues a function for the thread; returns its future. Does not block."""
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name="collectx-background", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return future

    def call_last(self, function: Callable[[], Any], timeout_s: float) -> None:
        """Calls a function in the thread, and ends the thread. If the thread was never started, or is still busy after
        `timeout_s` seconds, calls the function in the calling thread. Blocks until the function returns; raises its
        error."""
        if self._thread is None or self.is_current:
            function()
            return
        future = self.submit(function)
        # At Python's exit, `self._end()` would do nothing.
        if self._end.detach() is not None:
            self._calls.put(None)
        wait([future], _finite(timeout_s))
        if future.cancel():
            function()
        else:
            self._thread.join()
            future.result()


def _finite(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else min(timeout_s, LONGEST_WAIT_S)


def _late(timeout_s: float | None) -> TimeoutError:
    return TimeoutError(
        f"the current batch was not complete after {timeout_s:g} s (timeout={timeout_s:g}). Pass a longer timeout."
    )


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        # These would keep the collector alive while the thread waits.
        del call, future, function


class Background:
    """Calls a function again and again in a thread, from `start` until `stop` or an error."""

    def __init__(self, thread: StepThread) -> None:
        self._thread = thread
        self._changed = threading.Condition()
        self._num_holders = 0
        self._is_stepping = False
        # Whether the thread is waiting in `_may_step`.
        self._is_waiting = False
        self._stopping = False
        self._error: BaseException | None = None
        self._running: Future[None] | None = None
        self._has_begun = threading.Event()

    def start(self, step: Callable[[], object]) -> None:
        """Starts to call `step`, which collects one batch and raises `StopIteration` after the last one. Returns when
        the thread has begun its first step. Raises `RuntimeError` at a second call."""
        if self._running is not None:
            raise RuntimeError("this collector already collects in the background, because start() was called before")
        self._running = self._thread.submit(partial(self._run, step))
        self._has_begun.wait()

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._running is not None and not self._running.done()

    def ends_within(self, timeout_s: float | None) -> bool:
        """Waits up to `timeout_s` seconds until the thread ends; returns whether it has ended. True before `start`, and
        in the thread itself, which ends after its current step."""
        if self._thread.is_current:
            return True
        if self._running is not None:
            wait([self._running], _finite(timeout_s))
        return not self.is_running

    @contextmanager
    def hold(self, timeout_s: float | None = None) -> Iterator[None]:
        """Waits for the end of the current step; the thread begins no other step within the block. Several threads may
        be in such a block at once. In the thread itself, as in a hook that the step calls, does not wait.

        Raises:
            TimeoutError: on entry, if the current step takes longer than `timeout_s`.
            Exception: on entry, the error that ended the thread, once.
        """
        if self._thread.is_current:
            yield
            return
        with self._changed:
            # If another block has just ended, first lets the thread take a step.
            self._changed.wait_for(lambda: self._num_holders or not self._is_waiting, _finite(timeout_s))
            self._num_holders += 1
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._is_stepping, _finite(timeout_s)):
                    raise _late(timeout_s)
            self.check()
            yield
        finally:
            with self._changed:
                self._num_holders -= 1
                self._changed.notify_all()

    def stop(self, timeout_s: float | None = None) -> None:
        """Makes the current step the last one. Idempotent.

        Raises:
            TimeoutError: the current step takes longer than `timeout_s`.
            Exception: the error that ended the thread, once.
        """
        self._stop()
        if not self.ends_within(timeout_s):
            raise _late(timeout_s)
        self.check()

    def call_last(self, function: Callable[[], Any], timeout_s: float) -> None:
        """Makes the current step the last one; then see `StepThread.call_last`."""
        self._stop()
        self._thread.call_last(function, timeout_s)

    def _stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raises the error that ended the thread, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, step: Callable[[], object]) -> None:
        try:
            while self._may_step():
                self._has_begun.set()
                step()
        except StopIteration:
            pass
        except BaseException as error:
            self._error = error
        self._has_begun.set()
        with self._changed:
            self._is_stepping = False
            self._changed.notify_all()

    def _may_step(self) -> bool:
        """Waits while the thread is held; returns whether to take another step."""
        with self._changed:
            self._is_stepping = False
            self._changed.notify_all()
            self._is_waiting = True
            self._changed.wait_for(lambda: not self._num_holders or self._stopping)
            self._is_waiting = False
            self._is_stepping = not self._stopping
            return self._is_stepping
