"""Makes the standard streams of a process usable whatever has started it: closed ones, as cron and daemons leave them,
are /dev/null, and what is written to a pipe that nobody reads any more is dropped.

Called by the `collectx` command and by collectors, before they open files or start processes.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any


def open_closed() -> None:
    """Opens /dev/null as standard input, output and error where they are closed. The next files and sockets would have
    these descriptors otherwise, and the output of a library would be written into them. Does nothing to open ones."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The kernel gives the lowest number that is free: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, for the rest of the process


def outlive_readers(note: Callable[[str], None]) -> None:
    """Replaces `sys.stdout` and `sys.stderr`: what is written after their reader has gone is dropped, in place of a
    `BrokenPipeError`. `note` is called once where standard output is concerned. Does nothing to streams that are none
    of this process's own, as those of pytest."""
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(
            sys.stdout, lambda: note("standard output was closed, so the command continues without it.")
        )
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(sys.stderr, lambda: None)


class _Output(io.FileIO):
    """The unbuffered output to a descriptor; `on_closed` is called when its reader has gone."""

    def __init__(self, descriptor: int, on_closed: Callable[[], None]):
        super().__init__(descriptor, "wb", closefd=False)
        self._on_closed = on_closed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # Also for libraries that write to the descriptor.
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
