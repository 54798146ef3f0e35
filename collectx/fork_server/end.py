"""Makes the fork server that imports this module end the workers, and all that they started, when it ends.

The server ends when the process that started it ends, however that happens. It leads a process group, so that what
kills the group of that process leaves the server to do this. It ignores the signals that are sent to all processes,
which were blocked while it started.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal

import psutil

from collectx.fork_server import descendants

_SERVER = os.getpid()
_MARKS = descendants.marks_from(int(os.environ.pop(descendants.VARIABLE)))


def _end_workers() -> None:
    # A process that an env forks may run the exit handlers.
    if os.getpid() == _SERVER:
        workers = psutil.Process().children()
        for worker in workers:
            worker.kill()  # they ignore SIGTERM
        descendants.end([_MARKS], [worker.pid for worker in workers])


for _signum in descendants.SENT_TO_ALL:
    signal.signal(_signum, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, descendants.SENT_TO_ALL)
descendants.mark_process(_MARKS[0])
with contextlib.suppress(PermissionError):  # it leads a session
    os.setpgid(0, 0)
atexit.register(_end_workers)
