"""Makes the standard streams of a process usable, however it was started: closed streams, as from cron and daemons,
become /dev/null, and output to a pipe that nobody reads any more is dropped.

Called by the `collectx` command and by collectors, before they open files or start processes.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any


def open_closed() -> None:
    """Opens /dev/null in place of closed standard streams. Otherwise, the next files and sockets would get their
    descriptors, and libraries would write output into them. Leaves open streams alone."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The kernel uses the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, for the rest of the process


def outlive_readers(note: Callable[[str], None]) -> None:
    """Replaces `sys.stdout` and `sys.stderr`, so that output after their reader is gone is dropped instead of raising
    `BrokenPipeError`. Calls `note` once if this happens to standard output. Leaves replaced streams alone, such as
    pytest's."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(
            sys.stdout, lambda: note("standard output was closed, so the command continues without it.")
        )
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(sys.stderr, lambda: None)


class _Output(io.FileIO):
    """Unbuffered output to a descriptor; calls `on_closed` when its reader is gone."""

    def __init__(self, descriptor: int, on_closed: Callable[[], None]):
        super().__init__(descriptor, "wb", closefd=False)
        self._on_closed = on_closed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # Redirects the descriptor, as libraries may write to it too.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            self._on_closed()
            return super().write(data)


def _outliving(stream: Any, on_closed: Callable[[], None]) -> io.TextIOWrapper:
    stream.flush()
    raw = _Output(stream.fileno(), on_closed)
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
    buffer: Any = raw if is_unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
