"""The stacks of a worker that hangs. Its process writes them when it gets a signal, whatever its threads do.

The signal is SIGURG: a process without a handler ignores it, and the kernel of another host sends it when urgent data
arrives over the worker's connection. `faulthandler` writes in the handler itself, without the GIL.

    worker of this machine: into anonymous memory, which the trainer reads and appends to the worker's log
    worker of another host: to stderr, which is its log
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import socket
import stat
import time
from multiprocessing.connection import Connection
from pathlib import Path

from collectx.transport.connections import socket_of

_MEMORY = "collectx-stacks"
# Maximum seconds for writing, and seconds without another line after which the stacks are complete.
_MAX_S, _QUIET_S = 1.0, 0.05
# The frames that called the worker: those of the process from which it was forked.
_OUTER = re.compile(r'(?<=in run_worker\n)(  File "[^\n]*\n)+')
# The file that the handler of this process writes to.
_descriptor: int | None = None


def write_on_signal(connection: Connection | None = None) -> None:
    """Makes this process, a worker, write its stacks when it gets the signal. `connection` is the connection to a
    trainer that may be on another host; None: the trainer is on this machine."""
    global _descriptor
    if _descriptor is None:
        is_remote = connection is not None or not hasattr(os, "memfd_create")
        _descriptor = 2 if is_remote else os.memfd_create(_MEMORY)
        faulthandler.register(signal.SIGURG, _descriptor, all_threads=True)
    if connection is not None:
        fcntl.fcntl(connection.fileno(), fcntl.F_SETOWN, os.getpid())


def request_stacks(pid: int | None, connection: Connection | None) -> str:
    """Asks a worker for its stacks. Blocks for a second at most. Does not raise. Returns the stacks, or the reason why
    there are none, as sentences for an error message; "" if nothing is known. `pid` is the worker's process, if it is
    on this machine. `connection` is the connection to the worker, if it is on another host."""
    with contextlib.suppress(OSError):
        if pid is not None:
            return _read(pid)
        if connection is not None:
            with socket_of(connection) as line:
                line.send(b"\0", socket.MSG_OOB | socket.MSG_DONTWAIT)
            return "Its log ends with the stacks of its threads, unless its process or host is stopped."
    return ""


def _read(pid: int) -> str:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    if state in "Tt":
        return "Its process is stopped (by SIGSTOP, a debugger or a scheduler), so it cannot write its stacks."
    descriptors = Path(f"/proc/{pid}/fd")
    memory = next((each for each in descriptors.iterdir() if f":{_MEMORY} " in os.readlink(each)), None)
    if memory is None:
        return "Its process has not started working yet, so it cannot write its stacks."
    written = b""
    with open(memory, "rb") as file:
        file.seek(0, os.SEEK_END)
        os.kill(pid, signal.SIGURG)
        deadline_s = time.monotonic() + _MAX_S
        while time.monotonic() < deadline_s:
            time.sleep(_QUIET_S)
            lines = file.read()
            written += lines
            if written and not lines:
                break
    if not written:
        return f"Its process did not write its stacks within {_MAX_S:g} s (state {state} in /proc/{pid}/stat)."
    text = f"The stacks of its threads:\n{_OUTER.sub('', written.decode(errors='replace'))}"
    if stat.S_ISREG((descriptors / "2").stat().st_mode):
        with open(descriptors / "2", "a") as log:
            log.write(f"The trainer killed this worker, because it exceeded a timeout. {text}")
    return text.rstrip()
