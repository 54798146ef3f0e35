"""A lock between processes that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from multiprocessing import reduction
from typing import Any

from collectx.memory import anonymous_file


class Lock:
    """A lock between processes and between their threads, as a context manager. The kernel releases it when its holder
    dies.

    It is a POSIX record lock, because other kinds belong to duplicated descriptors and forked processes too. Closing
    any descriptor of the file releases it; so the file has no other purpose, and a process has one `Lock` object per
    file, however often the lock is unpickled.
    """

    def __init__(self) -> None:
        descriptor = anonymous_file("replay")
        with _guard:
            self._init(descriptor)

    def _init(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.Lock()
        weakref.finalize(self, os.close, descriptor)
        _locks[_identity(descriptor)] = self

    def __reduce__(self) -> Any:
        return _unpickle_lock, (reduction.DupFd(self._descriptor),)

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()


# The locks of this process, by device and inode.
_locks: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def _unpickle_lock(sent: Any) -> Lock:
    descriptor = sent.detach()
    with _guard:
        lock = _locks.get(_identity(descriptor))
        if lock is None:
            lock = Lock.__new__(Lock)
            lock._init(descriptor)
            return lock
    with lock._threads:  # closing the descriptor would release the lock
        os.close(descriptor)
    return lock


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
