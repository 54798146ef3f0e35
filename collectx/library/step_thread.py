"""The thread that steps a collector's envs in the background, for `start()` and `async for`. It also closes them,
because some envs, such as those with a connection to SQLite, may be used only by the thread that made them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeAlias

_Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


class StepThread:
    """Calls functions one after another in a daemon thread, which the first call starts, and which ends with this
    object."""

    def __init__(self) -> None:
        self._calls: _Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end = weakref.finalize(self, self._calls.put, None)
        # At Python's exit, the thread may have to close envs first.
        self._end.atexit = False

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Lets the thread call a function. Does not block."""
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name="collectx-background", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return future

    def call_last(self, function: Callable[[], Any], timeout_s: float) -> None:
        """Calls a function in the thread, which then ends. Calls it in the calling thread if the other one was never
        started, or is busy for `timeout_s`. Blocks."""
        if self._thread in (None, threading.current_thread()):
            function()
            return
        future = self.submit(function)
        self._end()
        wait([future], timeout_s)
        if future.cancel():
            function()
        else:
            self._thread.join()
            future.result()


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        # These refer to the collector, which may end meanwhile.
        del call, future, function
