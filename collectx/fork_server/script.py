"""How worker processes begin: the state that they inherit, and the user's script.

multiprocessing imports the trainer's `__main__` script in every process that it starts, so a script without
`if __name__ == "__main__":` would start its collector again in each worker. Such a script is not imported: collectors
pickle functions and classes of `__main__` by value (`collectx.user_objects`), and need no import.

Workers are forked from a server that may be hours old. `Inherited` gives them the state that the trainer's process has
now: environment variables, limits, signal masks, Hydra's configuration.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from collectx import hydra_state


class Inherited:
    """The state that a process would inherit if the calling thread started it now: environment, umask, resource limits,
    niceness, cores, blocked and ignored signals, and what Hydra set up. multiprocessing passes on the working
    directory.

    A process that unpickles this object adopts all of it. Values that it may not set stay as they are."""

    def __init__(self, environment: Mapping[str, str]):
        import resource

        limits = {}
        for name in dir(resource):
            if name.startswith("RLIMIT_"):
                with contextlib.suppress(OSError, ValueError):  # the system lacks this limit
                    limits[name] = resource.getrlimit(getattr(resource, name))
        self._values = {
            "environment": dict(environment),
            "umask": _umask(),
            "limits": limits,
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
            "blocked": [int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "ignored": _with(signal.SIG_IGN),
            "default": _with(signal.SIG_DFL),
            "hydra": hydra_state.current(),
        }

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return _adopt, tuple(self._values.values())


def _umask() -> int:
    """Returns this process's umask, on Linux without changing it, as `os.umask` does for all threads."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    os.umask(mask := os.umask(0o077))
    return mask


def _adopt(
    environment: dict[str, str],
    umask: int,
    limits: dict[str, tuple[int, int]],
    niceness: int,
    cores: set[int] | None,
    blocked: list[int],
    ignored: list[int],
    default: list[int],
    hydra: dict[str, Any] | None,
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
    for signum in ignored:
        with contextlib.suppress(OSError):
            signal.signal(signum, signal.SIG_IGN)
    # A signal that the trainer handles stays as in the fork server: it may come before this process ignores it.
    for signum in {*_with(signal.SIG_IGN)}.intersection(default):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    hydra_state.adopt(hydra)


def _with(action: signal.Handlers) -> list[int]:
    return [int(signum) for signum in signal.valid_signals() if signal.getsignal(signum) is action]


_replacing = threading.Lock()


@functools.cache
def is_guarded() -> bool:
    """Whether the script compares `__name__` with anything. True if there is no script, or its source is not Python's;
    False if it is no file, but comes from standard input: no process can import it."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    try:
        nodes = list(ast.walk(ast.parse(Path(path).read_bytes()))) if path else []
    except OSError:
        return False
    except (SyntaxError, ValueError):
        return True
    compared = [each for node in nodes if isinstance(node, ast.Compare) for each in ast.walk(node)]
    return not nodes or "__name__" in [each.id for each in compared if isinstance(each, ast.Name)]


@contextmanager
def usable_preparation(inherited: Inherited) -> Iterator[None]:
    """Within the block, processes that this thread starts adopt the `inherited` state before they import user code.
    They do not import the script, unless it is guarded, and do not get the start method of joblib's processes, which
    only joblib knows. Processes that other threads start meanwhile, such as those of a DataLoader, start as usual."""
    left_out: tuple[str, ...] = () if is_guarded() else ("init_main_from_name", "init_main_from_path")
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        left_out += ("start_method",)
    with _replacing:
        describe, ours = spawn.get_preparation_data, threading.get_ident()

        def prepared(name: str) -> dict[str, Any]:
            if threading.get_ident() != ours:
                return describe(name)
            kept = {key: value for key, value in describe(name).items() if key not in left_out}
            return {"inherited": inherited, **kept}

        spawn.get_preparation_data = prepared
        try:
            yield
        finally:
            spawn.get_preparation_data = describe
