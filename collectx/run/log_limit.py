"""`run.max_log_bytes`: limits the logs of workers on this machine. A thread of the trainer's process looks at their
sizes, and rewrites a log that is too large: repeated lines are folded, then the oldest are removed.

    worker, its C code and child processes --append--> logs/worker-0.log <--rewrite if too large-- thread

The standard output of a worker is the file itself. A pipe would lose the last lines before a crash, and would need
another process to read it, because C code may print while it holds the interpreter's lock. Rewriting in place keeps all
writers, because each of them appends (O_APPEND). Only lines that are written in the microseconds before a log is cut
are lost. Between two looks, a log may exceed the limit.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

# Seconds between two looks at the sizes.
_LOOK_S = 1.0
_CHUNK_BYTES = 1 << 20
_FOLDED = re.compile(rb"\[collectx: the line above was written (\d+) times\]\n")


class LogLimit:
    """Limits the logs below `folder` with these names, patterns of `Path.glob`, to `max_bytes`; None: no limit. As a
    context manager, starts its thread, and ends it after a last look.

    Args:
        events: called once, as `events("log_limited", file=..., max_bytes=...)`, when the first log is rewritten.
    """

    def __init__(self, folder: Path, names: Iterable[str], max_bytes: int | None, events: Callable[..., None]):
        self._folder, self._names, self._max_bytes, self._events = folder, [*names], max_bytes, events
        self._removed: dict[Path, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collectx-log-limit", daemon=True)

    def __enter__(self) -> Self:
        if self._max_bytes is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        if self._max_bytes is not None:
            self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(_LOOK_S)
            for path in (path for name in self._names for path in self._folder.glob(name)):
                with suppress(OSError):  # a full disk, or a file of another user
                    self._look(path, self._max_bytes or 0)

    def _look(self, path: Path, max_bytes: int) -> None:
        if path.stat().st_size <= max_bytes:
            return
        before = self._removed.get(path, 0)
        self._removed[path] = before + shorten(path, max_bytes, before)
        if len(self._removed) == 1 and not before:
            self._events("log_limited", file=f"{path.parent.name}/{path.name}", max_bytes=max_bytes)


def shorten(path: Path, max_bytes: int, removed: int = 0) -> int:
    """Folds the repeated lines of a log, keeps the newest lines in half of `max_bytes`, and writes above them what was
    done. Others may append meanwhile. Returns the number of bytes by which the lines became shorter; `removed` are
    those of earlier calls."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        content = os.pread(descriptor, max_bytes, max(0, size - max_bytes))
        lines = content.splitlines(keepends=True)
        body = b"".join(_fold(lines[1:] or lines))
        if len(body) > max_bytes // 2:
            body = body[-(max_bytes // 2) :]
            body = body[body.find(b"\n") + 1 :]
        removed_now = size - len(body)
        text = (
            f"[collectx: this log exceeded run.max_log_bytes={max_bytes}. Repeated lines were folded, and older ones "
            f"removed: {removed + removed_now:,} bytes.]\n"
        )
        end = _write(descriptor, text.encode() + body, 0)
        while rest := os.pread(descriptor, _CHUNK_BYTES, size):
            size += len(rest)
            end = _write(descriptor, rest, end)
        os.ftruncate(descriptor, end)
        return removed_now
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes, position: int) -> int:
    """Writes all of `data`, and returns the position after it."""
    while data:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count
    return position


def _fold(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Yields each run of equal lines as the line and its count. A run may contain counts of an earlier call."""
    last, count = b"", 0
    for line in lines:
        earlier = _FOLDED.fullmatch(line)
        if earlier and count:
            count += int(earlier[1]) - 1
        elif line == last:
            count += 1
        else:
            yield from _run_of(last, count)
            last, count = line, 1
    yield from _run_of(last, count)


def _run_of(line: bytes, count: int) -> Iterable[bytes]:
    return [line] * count if count < 3 else [line, b"[collectx: the line above was written %d times]\n" % count]
