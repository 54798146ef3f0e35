"""What the processes of one buffer share: bytes without a name, and a lock that nobody can take to the grave.

Both are anonymous files whose descriptors travel in a pickle to the processes that need them, so nothing is left in
/dev/shm or on a disk, whoever is killed. Must not know frames.
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
    """A file without a name, of which every process maps as much as it needs.

    Args:
        directory: where the bytes lie, on a disk: then they may be more than fit in memory. None: in memory.
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
        """The first `nbytes`, as `[nbytes]` uint8, zero where nobody has written; the file grows to them if it has
        less. The mapping ends with the last tensor over it."""
        if os.fstat(self._descriptor).st_size < nbytes:
            os.ftruncate(self._descriptor, nbytes)
        return torch.frombuffer(mmap.mmap(self._descriptor, nbytes), dtype=torch.uint8)


class Lock:
    """A lock between processes, and between the threads of each. The kernel takes it from a process that dies.

    It is a POSIX record lock, the one kind that neither a copy of the descriptor in another process nor a fork shares.
    A process loses it when it closes any descriptor of the file: hence a file that is for nothing else, and one `Lock`
    in a process, however often one arrives there.
    """

    def __init__(self) -> None:
        self._take(_anonymous_file(None))

    def _take(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.Lock()
        weakref.finalize(self, os.close, descriptor)
        with _guard:
            _locks[_identity(descriptor)] = self

    def __reduce__(self) -> Any:
        return _arrive, (reduction.DupFd(self._descriptor),)

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
    """Keeps the processor from moving memory accesses over this point, as releasing and taking a lock does."""
    for _ in range(2):
        with _fence:
            pass


_fence = threading.Lock()

# The locks of this process, by their files.
_locks: weakref.WeakValueDictionary[tuple[int, int], Lock] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def _arrive(sent: Any) -> Lock:
    descriptor = sent.detach()
    with _guard:
        found = _locks.get(_identity(descriptor))
    if found is None:
        found = Lock.__new__(Lock)
        found._take(descriptor)
    else:
        with found._threads:  # not while this process holds it
            os.close(descriptor)
    return found


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _anonymous_file(directory: Path | None) -> int:
    if directory is None and hasattr(os, "memfd_create"):
        return os.memfd_create("collectx-replay")
    with tempfile.TemporaryFile(prefix="collectx-replay-", dir=directory) as file:
        return os.dup(file.fileno())
