"""The lock of a run folder: on Linux an open file description lock (fcntl(2), "OFD locks"), elsewhere flock(2).

The kernel releases the lock when its holder exits or is killed. An OFD lock works between hosts on NFS, as POSIX record
locks do. Unlike POSIX locks, both kinds survive when the holder opens and closes the file again, as a reader of the
folder does, and a process cannot lock a file twice. A forked process would share the lock, so it closes the descriptor.
On a file system without locks, every lock is granted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

_HAS_OFD = sys.platform == "linux"
# The numbers in Linux's fcntl.h: Pythons built with glibc headers before 2.20 have no names for them.
_OFD_GETLK, _OFD_SETLK = 36, 37
_HELD = (errno.EACCES, errno.EAGAIN)
# struct flock of 64-bit Linux, without its padding: type, whence, start, length (0: the whole file), pid.
_FLOCK = struct.Struct("hhqqi")
_handles: set[int] = set()


def acquire(path: Path) -> tuple[int, bool]:
    """Opens the file, creating it if necessary, and locks it without waiting. Returns (descriptor, acquired): pass the
    descriptor to `release`; `acquired` is False if another process holds the lock. Raises `OSError` if the file cannot
    be opened."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _handles.add(handle)
    try:
        if _HAS_OFD:
            _call(handle, _OFD_SETLK, fcntl.F_WRLCK)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return handle, error.errno not in _HELD
    return handle, True


def release(handle: int) -> None:
    """Closes the file and releases its lock. Does nothing in a process that was forked since `acquire`."""
    if handle in _handles:
        _handles.remove(handle)
        # A process that was forked by other means than Python may have a copy of the descriptor.
        with suppress(OSError):
            _call(handle, _OFD_SETLK, fcntl.F_UNLCK) if _HAS_OFD else fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process, possibly this one, holds the lock of the file. False if the file does not exist or cannot be
    read. flock(2) cannot ask, so there this takes a shared lock for a moment."""
    try:
        with open(path, "rb") as file:
            if _HAS_OFD:
                return _call(file.fileno(), _OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def is_held_by(path: Path, pid: int) -> bool:
    """Whether process `pid` of this host holds the lock of the file. False if its files are hidden from this user.

    The kernel does not say who holds such a lock, but lists the locks of each open file of a process.
    """
    try:
        lock = path.stat()
        entries = list(os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False
    for entry in entries:
        with suppress(OSError):  # closed since
            info = Path(f"/proc/{pid}/fdinfo/{entry.name}")
            if os.path.samestat(entry.stat(), lock) and "\nlock:" in info.read_text():
                return True
    return False


def _call(handle: int, command: int, kind: int) -> int:
    """Calls fcntl(2) for all bytes of the file; returns the kind of lock in its answer."""
    answer = fcntl.fcntl(handle, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    return int(_FLOCK.unpack(answer)[0])


def _close_all() -> None:
    for handle in _handles:
        with suppress(OSError):
            os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_close_all)
