"""Shared memory without a name: an anonymous file whose descriptor is sent to other processes in pickles. So nothing is
left behind in /dev/shm or on a disk when a process is killed, and no limit on /dev/shm applies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch


def anonymous_file(name: str, directory: Path | None = None) -> int:
    """Returns the descriptor of an anonymous file in memory, or in a folder of a disk."""
    if directory is None and hasattr(os, "memfd_create"):
        return os.memfd_create(f"collectx-{name}")
    with tempfile.TemporaryFile(prefix=f"collectx-{name}-", dir=directory) as file:
        return os.dup(file.fileno())


class SharedMemory:
    """An anonymous file that processes map. It is freed when the last object and the last mapping are gone. Can be
    pickled, but only as an argument of a process that is being started, or through a pipe of multiprocessing.

    Args:
        name: shown in `/proc/PID/fd` and `/proc/PID/maps`.
        directory: a folder on a disk, for data that does not fit in memory. None: in memory.
    """

    def __init__(self, name: str, directory: Path | None = None):
        self._own(anonymous_file(name, directory))

    def _own(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __getstate__(self) -> Any:
        return reduction.DupFd(self._descriptor)

    def __setstate__(self, descriptor: Any) -> None:
        self._own(descriptor.detach())

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._descriptor).st_size

    def map(self, nbytes: int) -> torch.Tensor:
        """Maps the first `nbytes` bytes as `[nbytes]` uint8; grows the file, with zeros, if it is shorter. The mapping
        ends when the last tensor that views it is freed."""
        if os.fstat(self._descriptor).st_size < nbytes:
            os.ftruncate(self._descriptor, nbytes)
        return torch.frombuffer(mmap.mmap(self._descriptor, nbytes), dtype=torch.uint8)


_fence = threading.Lock()


def barrier() -> None:
    """A memory barrier: releasing and taking a lock keeps the processor from reordering memory accesses."""
    for _ in range(2):
        with _fence:
            pass
