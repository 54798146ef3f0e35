"""Shared memory, and memory for batches.

Shared memory is an anonymous file, and pickles send its descriptor to other processes. So a killed process leaves
nothing behind in /dev/shm or on a disk, and no limit of /dev/shm applies.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch


def anonymous_file(name: str, directory: Path | None = None) -> int:
    """Returns the descriptor of a new anonymous file in memory, or on the disk of `directory`. The caller closes it."""
    if directory is None and hasattr(os, "memfd_create"):
        return os.memfd_create(f"collectx-{name}")
    with tempfile.TemporaryFile(prefix=f"collectx-{name}-", dir=directory) as file:
        return os.dup(file.fileno())


class SharedMemory:
    """Memory that several processes map: an anonymous file, freed when the last object and the last mapping are gone.
    It can be pickled only as an argument of a process that is being started, or through a multiprocessing pipe.

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
        """The size of the file."""
        return os.fstat(self._descriptor).st_size

    def map(self, nbytes: int) -> torch.Tensor:
        """Returns the first `nbytes` bytes as `[nbytes]` uint8; a shorter file is extended with zeros. The mapping ends
        when the last tensor that views it is freed."""
        if os.fstat(self._descriptor).st_size < nbytes:
            os.ftruncate(self._descriptor, nbytes)
        return torch.frombuffer(mmap.mmap(self._descriptor, nbytes), dtype=torch.uint8)


class BatchMemory:
    """Allocates CPU memory for batches, and reuses it once the last tensor that views it is freed: the kernel zeroes
    every page of new memory, which takes longer than copying a batch into it."""

    # The C library reuses smaller blocks itself (glibc's M_MMAP_THRESHOLD_MAX).
    MIN_BYTES = 32 << 20
    # The consumer of a batch usually keeps it while the next one is made.
    MAX_FREE = 2

    def __init__(self) -> None:
        self._free: deque[torch.Tensor] = deque(maxlen=self.MAX_FREE)

    def empty(self, nbytes: int, device: torch.device) -> torch.Tensor:
        """Returns `[nbytes]` uint8 of undefined content. It belongs to the caller, and any thread may free it. GPU
        memory comes from torch."""
        if nbytes < self.MIN_BYTES or device.type != "cpu":
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        try:
            block = self._free.pop()
        except IndexError:
            block = None
        if block is None or block.numel() != nbytes:
            block = torch.empty(nbytes, dtype=torch.uint8)
        # Only tensors that view this array keep it alive.
        array = block.numpy()
        weakref.finalize(array, self._free.append, block).atexit = False
        return torch.from_numpy(array)

    def copy(self, memory: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `[nbytes]` uint8, on the same device."""
        return self.empty(memory.numel(), memory.device).copy_(memory)


# The memory for batches of this process.
batch_memory = BatchMemory()


_fence = threading.Lock()


def barrier() -> None:
    """Keeps the processor from reordering memory accesses before and after this call. A release of a lock that is
    followed by an acquire is a full fence; taking it once would be half of one."""
    for _ in range(2):
        with _fence:
            pass
