"""The thread that steps a collector's envs in the background, for `start()` and `async for`. It also closes these envs,
because some, such as those with a connection to SQLite, may only be used by one thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeAlias

_Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


class StepThread:
    """Calls functions one after another in a daemon thread. The first call starts the thread; it ends when this object
    is garbage-collected, or after `call_last`."""

    def __init__(self) -> None:
        self._calls: _Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._end = weakref.finalize(self, self._calls.put, None)
        # Not at Python's exit, because the thread may have to close envs then.
        self._end.atexit = False

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Queues a function for the thread; returns its future. Does not block."""
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name="collectx-background", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return future

    def call_last(self, function: Callable[[], Any], timeout_s: float) -> None:
        """Calls a function in the thread, which then ends. Calls it in the calling thread instead if the thread was
        never started, or is still busy after `timeout_s` seconds. Blocks until the function returns; raises its
        error."""
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
        # These would keep the collector alive while the thread waits.
        del call, future, function
