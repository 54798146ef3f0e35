"""What a worker's process inherits. The fork server is older than the workers that it forks: without this module, they
would have the environment that the trainer's process had when the server was started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any


class Inherited:
    """What a process that the calling thread started now would inherit, apart from its working directory, which
    multiprocessing passes on: environment, umask, resource limits, niceness, cores, blocked and ignored signals.

    A process that unpickles it takes all of this over. Values that it may not take over stay as they are.

    Args:
        environment: its environment variables.
    """

    def __init__(self, environment: Mapping[str, str]):
        import resource

        os.umask(mask := os.umask(0o077))
        limits = {}
        for name in dir(resource):
            if name.startswith("RLIMIT_"):
                with contextlib.suppress(OSError, ValueError):  # the system does not have it
                    limits[name] = resource.getrlimit(getattr(resource, name))
        self._values = {
            "environment": dict(environment),
            "umask": mask,
            "limits": limits,
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
            "blocked": [int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "ignored": [int(signum) for signum in _ignored()],
        }

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return _take_over, tuple(self._values.values())


def _take_over(
    environment: dict[str, str],
    umask: int,
    limits: dict[str, tuple[int, int]],
    niceness: int,
    cores: set[int] | None,
    blocked: list[int],
    ignored: list[int],
) -> None:
    import resource

    if environment != os.environ:
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
    os.umask(umask)
    for name, limit in limits.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), limit)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if cores is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)
    before = {int(signum) for signum in _ignored()}
    for signum in before.symmetric_difference(ignored):
        with contextlib.suppress(OSError):
            signal.signal(signum, signal.SIG_DFL if signum in before else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _ignored() -> list[signal.Signals]:
    return [signum for signum in signal.valid_signals() if signal.getsignal(signum) is signal.SIG_IGN]
