"""Makes the fork server that imports this module end the workers, and all that they started, when it ends.

The server ends when the process that started it ends, however that happens. It leads a process group, so that what
kills the group of that process leaves the server to do this.
"""

from __future__ import annotations

import atexit
import contextlib
import os

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


descendants.mark_process(_MARKS[0])
with contextlib.suppress(PermissionError):  # it leads a session
    os.setpgid(0, 0)
atexit.register(_end_workers)
