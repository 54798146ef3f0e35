"""Shared memory, and an inter-process lock that the kernel releases when its holder dies.

Both are anonymous files whose descriptors are sent to other processes in pickles, so killed processes leave nothing in
/dev/shm or on a disk.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch


class Memory:
    """An anonymous file that processes map as shared memory.

    Args:
        directory: a folder on a disk, for data that does not fit in memory. None: in memory.
    """

    def __init__(self, directory: Path | None = None):
        self._descriptor = _anonymous_file(directory)
        weakref.finalize(self, os.close, self._descriptor)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._descriptor)

    def __setstate__(self, descriptor: Any) -> None:
        self._descriptor = descriptor.detach()
        weakref.finalize(self, os.close, self._descriptor)

    def map(self, nbytes: int) -> torch.Tensor:
        """Maps the first `nbytes` bytes as `[nbytes]` uint8; grows the file, with zeros, if it is shorter. The mapping
        ends when the last tensor that views it is freed."""
        if os.fstat(self._descriptor).st_size < nbytes:
            os.ftruncate(self._descriptor, nbytes)
        return torch.frombuffer(mmap.mmap(self._descriptor, nbytes), dtype=torch.uint8)


class Lock:
    """A lock between processes, and between the threads of each. The kernel releases it when its holder dies.

    It is a POSIX record lock: other kinds are shared with duplicated descriptors and forked processes. A process
    releases it by closing any descriptor of the file; so the file has no other use, and a process has only one `Lock`
    per file, however often the lock is unpickled.
    """

    def __init__(self) -> None:
        self._init(_anonymous_file(None))

    def _init(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.Lock()
        weakref.finalize(self, os.close, descriptor)
        with _guard:
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


def barrier() -> None:
    """A memory barrier: acquiring and releasing a lock orders the memory accesses before and after it."""
    for _ in range(2):
        with _fence:
            pass


_fence = threading.Lock()

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
    else:
        with lock._threads:  # closing the descriptor would release the lock
            os.close(descriptor)
    return lock


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _anonymous_file(directory: Path | None) -> int:
    """Returns the descriptor of an anonymous file."""
    if directory is None and hasattr(os, "memfd_create"):
        return os.memfd_create("collectx-replay")
    with tempfile.TemporaryFile(prefix="collectx-replay-", dir=directory) as file:
        return os.dup(file.fileno())
