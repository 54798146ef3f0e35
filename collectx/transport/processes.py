"""The interface of a started worker process, which every launcher implements, and how processes are ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol


class Handle(Protocol):
    """A started worker process, with the interface of `multiprocessing.Process`. `sentinel` is a descriptor that
    becomes readable when the process ends, or -1 if there is none. `pid` is None for jobs, tasks and steps of a
    scheduler and for Ray actors, whose end is noticed late; the supervisor does not wait for it."""

    @property
    def sentinel(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def end_processes(handles: Sequence[Handle], timeout_s: float) -> None:
    """Waits for processes to end, for so long; then terminates, and at last kills them."""
    deadline = time.monotonic() + timeout_s
    for method in (None, "terminate", "kill"):
        for handle in handles:
            if method is not None and handle.exitcode is None:
                getattr(handle, method)()
        for handle in handles:
            handle.join(max(0.0, deadline - time.monotonic()))
        deadline = time.monotonic() + 1.0
