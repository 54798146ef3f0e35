"""Who may write to a run folder: one process at a time, and where a run is already, only who may replace it.

The lock is a POSIX record lock. The kernel releases it when its holder ends, however that happens, and processes that
the holder forks do not hold it. NFS keeps it between hosts. On a file system without locks there is none.

Used by the command line and in the trainer's process. Must not know what a run is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from collectx.errors import ConfigError
from collectx.run.folder import RunFolder, folder_errors

_HELD = (errno.EACCES, errno.EAGAIN)


@contextmanager
def locked(files: RunFolder, replace: bool, force: bool = False) -> Iterator[None]:
    """Makes the folder and locks it for the block. Does not wait. A process must not lock a folder twice: leaving the
    inner block would release the lock.

    Args:
        replace: whether a run that is there may be replaced.
        force: goes on without the lock where another process holds it, and replaces what is there: for a job that a
            scheduler starts again, whose first start is gone, though a file server may not know that yet.

    Raises:
        ConfigError: another process holds the lock, a run is there that may not be replaced, or the folder cannot be
            made.
    """
    with folder_errors(files.path):
        files.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _take(handle) and not force:
            holder = os.read(handle, 1000).decode(errors="replace").strip()
            raise ConfigError(
                [
                    f"{files.path}: a run is going on in this folder ({holder or 'its process is not known'}): "
                    "choose another with hydra.run.dir, or wait for its end."
                ]
            )
        if files.has_run and not (replace or force):
            raise ConfigError(
                [
                    f"{files.path}: this folder has a run in it: choose another with hydra.run.dir, or replace that "
                    "run with run.overwrite=true."
                ]
            )
        with folder_errors(files.path):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    """Whether no other process holds the lock."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
