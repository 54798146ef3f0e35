"""Counts the progress of a worker process. The counters lie in the transport's memory, where the trainer reads them
(`report_to`).

counts[STEPS]   steps of the current batch
counts[OTHERS]  envs that were made or reset, and the progress of this process's own workers
counts[IMPORTS] modules whose import began, and user code that was imported
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

STEPS, OTHERS, IMPORTS = 0, 1, 2
# The counters as plain numbers, and their size in memory.
Counts = tuple[int, int, int]
NBYTES = 24
counts = memoryview(array("q", [0, 0, 0]))
# A process that does not report progress yet counts as hung if it uses less than this share of one core.
LEAST_CPU = 0.01
# After how long, and then how often, `telling_imports` prints.
_SILENT_S, _TELL_S = 1.0, 5.0
# Packages that are imported at once, or within a larger one, so that their names would tell nothing.
_SMALL = sys.stdlib_module_names | {
    *("collectx", "antlr4", "attr", "attrs", "cloudpickle", "markdown_it", "mdurl", "mpmath", "omegaconf", "orjson"),
    *("packaging", "psutil", "pygments", "pyvers", "rich", "typing_extensions", "yaml"),
}
_has_told = False
_notify: Callable[[], object] | None = None


def report_to(target: memoryview, notify: Callable[[], object] | None = None) -> None:
    """Moves the counters to `target`, `[3]` int64. `notify` is called by `one_more`, if the trainer cannot read the
    memory itself."""
    global counts, _notify
    counts, _notify = target, notify


def one_more(kind: int = OTHERS) -> None:
    """Counts something other than a step."""
    counts[kind] += 1
    if _notify is not None:
        _notify()


def stepped(num_steps: int) -> None:
    """Counts the steps of the current batch. A slow reset may follow, so the trainer hears of them at once."""
    counts[STEPS] = num_steps
    one_more()


class _ImportCounter:
    """A finder of modules that finds none, but counts those that its thread imports. Python asks it before others."""

    def __init__(self, began: Callable[[str], object] | None):
        self._importer = os.getpid(), threading.get_ident()
        self._began = began

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        # A fork of this process must not write to the connection.
        if self._importer == (os.getpid(), threading.get_ident()):
            one_more(IMPORTS)
            if self._began is not None:
                self._began(name)


@contextmanager
def counting_imports(began: Callable[[str], object] | None = None) -> Iterator[None]:
    """Counts each module that this thread begins to import within the block. Calls `began` with its name."""
    counter: Any = _ImportCounter(began)
    sys.meta_path.insert(0, counter)
    try:
        yield
    finally:
        with suppress(ValueError):  # user code has replaced the finders
            sys.meta_path.remove(counter)


@contextmanager
def telling_imports(repeats: bool = False) -> Iterator[None]:
    """Prints, on standard error, what the block imports: on a terminal each second, in one line; elsewhere once in this
    process, after a second, or, with `repeats`, then every 5 s."""
    began_s = time.monotonic()
    next_s = began_s + _SILENT_S
    is_terminal = on_terminal(sys.stderr)

    def tell(name: str) -> None:
        nonlocal next_s
        global _has_told
        if (now_s := time.monotonic()) >= next_s and (is_terminal or repeats or not _has_told):
            next_s = now_s + (_SILENT_S if is_terminal else _TELL_S)
            _has_told = True
            tell_briefly(f"collectx: starting (importing {packages(name)})", sys.stderr)

    with counting_imports(tell):
        yield
    if is_terminal:
        erase(sys.stderr)


def packages(module: str) -> str:
    """Returns what is being imported, from the name of the current module; names no small one."""
    package = module.partition(".")[0]
    return "Python packages" + f", now {package}" * (package not in _SMALL)


def on_terminal(stream: IO[str]) -> bool:
    """Whether a stream is a terminal that can erase a line."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "dumb")


def tell_briefly(text: str, stream: IO[str]) -> None:
    """Prints a line; on a terminal, what is printed next replaces it. Call `erase` before."""
    if on_terminal(stream):
        # In one line, as only that is erased.
        print(f"\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="\r", file=stream, flush=True)
    else:
        print(text, file=stream, flush=True)


def erase(stream: IO[str]) -> None:
    """Erases the line of `tell_briefly`. Without it, does nothing, as the cursor is at the end of what was printed."""
    if on_terminal(stream):
        print("\x1b[K", end="", file=stream, flush=True)


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process of this machine, in seconds; 0 if it has ended. The processor time of a
    process that cannot count yet tells whether it hangs."""
    import psutil

    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def file_size(path: Path) -> int:
    """Returns the bytes in a file; 0 if there is none. A log that grows tells that a process of another machine, which
    cannot count yet, does not hang (`telling_imports`)."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
