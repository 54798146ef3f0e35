"""The lock of a run folder: one process writes to it at a time, and replaces an earlier run only on request.

The lock is a POSIX record lock, which the kernel releases when its holder exits or is killed; forked processes do not
inherit it. It works between hosts on NFS, and has no effect on a file system without locks.

Used by the command line and in the trainer's process.
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
        replace: whether to replace a run that the folder contains.
        force: ignores the lock of another process and replaces the run: for a job that a scheduler restarts, whose
            first process has ended although a file server may still hold its lock.

    Raises:
        ConfigError: another process holds the lock, the folder contains a run and `replace` is false, or the folder
            cannot be made.
    """
    with folder_errors(files.path):
        files.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _try_lock(handle) and not force:
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


def _try_lock(handle: int) -> bool:
    """Locks the file; returns False if another process holds the lock."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
