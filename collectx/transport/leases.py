"""Batches without a copy: which region of a slab contains which slot, and which regions the consumer of the batches
still uses.

    1. A worker fills slot S, which is in region R.
    2. The batch is delivered: its tensors view R, which is leased to the consumer.
    3. S is released: it moves to a free region, where a worker fills it again.
    4. The last tensor of the batch is gone: R is free.

If no region is free, because the consumer keeps earlier batches, the batch is copied instead.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch

from collectx.batch import aligned

# Of mmap(2) and mremap(2).
_FAILED, _MAY_MOVE, _FIXED = ctypes.c_void_p(-1).value, 1, 2
# A consumer usually holds a batch until it has the next one: two regions are then leased at a time.
NUM_SPARE = 2


class Leases:
    """The regions of a slab. Use it from one thread; any thread may free tensors of a leased batch. `on_lack` is called
    when a batch cannot be leased for the first time.

    Args:
        slots: the slots, which are in the first regions, in this order.
        regions: the memory of each region, `[nbytes]` uint8. Nothing is leased unless there are more than slots.
        is_shared: whether other processes map the regions. Each then begins with a page of its own.
    """

    def __init__(self, slots: Iterable[Hashable], regions: Sequence[torch.Tensor], is_shared: bool):
        self._regions = regions
        self._region_of = {slot: region for region, slot in enumerate(slots)}
        self._slot_in = {region: slot for slot, region in self._region_of.items()}
        # The region that was freed last is used first: more of it is still in the processor's cache.
        self._free = list(range(len(self._slot_in), len(regions)))
        # For each region, the last array that was leased: all tensors of that batch keep it alive.
        self._leased: dict[int, weakref.ref[Any]] = {}
        # Where the shared memory of a region is mapped while private memory is in its place, because of a fork.
        self._moved: dict[int, int] = {}
        self._is_shared = is_shared
        self.on_lack: Callable[[], object] = lambda: None
        self._is_closed = False
        if is_shared:
            _in_shared_memory.add(self)

    def region_of(self, slot: Hashable) -> int:
        """Returns the index of the region that contains a slot."""
        return self._region_of[slot]

    def slot_in(self, region: int) -> Any:
        """Returns the slot that a region contains."""
        return self._slot_in[region]

    def memory(self, slot: Hashable) -> torch.Tensor:
        """Returns the memory of the region that contains a slot."""
        return self._regions[self._region_of[slot]]

    def lease(self, slot: Hashable) -> torch.Tensor | None:
        """Returns the memory of the region that contains a slot, as a tensor that belongs to the caller: the region is
        used again only when the last tensor that views it is gone. Returns None if no region is free for the slot's
        next batch. A second call before `release` leases the same memory."""
        region = self._region_of[slot]
        array = self._array(region)
        if array is None:
            if not self._free:
                self.on_lack()
                self.on_lack = lambda: None
                return None
            array = self._regions[region].numpy()
            self._leased[region] = weakref.ref(array, partial(self._take_back, region))
        return torch.from_numpy(array)

    def release(self, slot: Hashable) -> None:
        """Moves a slot whose batch is leased to a free region, so that it can be filled."""
        region = self._region_of.get(slot, -1)
        array = self._array(region)  # while this exists, no other thread can free the region
        if array is not None:
            del self._slot_in[region]
            self._region_of[slot] = self._free.pop()
            self._slot_in[self._region_of[slot]] = slot

    def _array(self, region: int) -> Any:
        reference = self._leased.get(region)
        return None if reference is None else reference()

    def _take_back(self, region: int, reference: weakref.ref[Any]) -> None:
        """Frees a region whose batch is gone, unless its slot was not released."""
        if self._leased.get(region) is not reference or region in self._slot_in:
            return
        if (moved := self._moved.pop(region, None)) is not None:
            memory = self._regions[region]
            _move(moved, memory.data_ptr(), memory.numel())
        self._free.append(region)
        if self._is_closed:
            del self._leased[region]
            self._discard(region)

    def before_fork(self) -> None:
        """Moves leased batches to private memory at the same addresses: a child process must not share them with the
        workers, nor with this process. When a batch is gone, its region is there again."""
        for region in [region for region in self._leased if region not in {*self._slot_in, *self._moved}]:
            array = self._array(region)
            if array is not None:
                moved = _make_private(array.ctypes.data, array.nbytes)
                if moved is None:
                    del self._leased[region]  # it is not used again
                else:
                    self._moved[region] = moved

    def after_fork_in_child(self) -> None:
        """Frees no region from now on: they are the parent's."""
        self._leased.clear()

    def close(self) -> None:
        """Returns the pages of all regions to the system, those of leased ones when they are free."""
        self._is_closed = True
        for region, moved in self._moved.items():
            # The batch keeps its private memory.
            del self._leased[region]
            self._discard(region, moved)
            _libc().munmap(ctypes.c_void_p(moved), ctypes.c_size_t(self._regions[region].numel()))
        for region in {*range(len(self._regions))} - self._moved.keys():
            if self._array(region) is None:
                self._leased.pop(region, None)
                self._discard(region)

    def _discard(self, region: int, address: int | None = None) -> None:
        advice = getattr(mmap, "MADV_REMOVE" if self._is_shared else "MADV_DONTNEED", None)
        memory = self._regions[region]
        if advice is not None and len(self._regions) > len(self._slot_in):
            size = ctypes.c_size_t(aligned(memory.numel(), mmap.PAGESIZE))
            _libc().madvise(ctypes.c_void_p(address or memory.data_ptr()), size, advice)


# The leases whose regions other processes map.
_in_shared_memory: weakref.WeakSet[Leases] = weakref.WeakSet()


def _before_fork() -> None:
    for leases in list(_in_shared_memory):
        leases.before_fork()


def _after_fork_in_child() -> None:
    for leases in list(_in_shared_memory):
        leases.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _make_private(address: int, nbytes: int) -> int | None:
    """Replaces shared pages by private ones with the same content; other threads may read them meanwhile. Returns the
    address at which the shared pages are mapped from now on. Does nothing on systems other than Linux; returns None."""
    if not sys.platform.startswith("linux"):
        return None
    libc, size = _libc(), ctypes.c_size_t(aligned(nbytes, mmap.PAGESIZE))
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    # Of a mapping of size 0, mremap makes a second mapping of the same pages.
    moved = _checked(libc.mremap(ctypes.c_void_p(address), ctypes.c_size_t(0), size, _MAY_MOVE))
    copy = _checked(libc.mmap(None, size, access, kind, -1, ctypes.c_long(0)))
    ctypes.memmove(copy, address, nbytes)
    _move(copy, address, nbytes)
    return moved


def _move(source: int, address: int, nbytes: int) -> None:
    """Moves the pages at `source` to `address`, in place of those that are there."""
    size = ctypes.c_size_t(aligned(nbytes, mmap.PAGESIZE))
    _checked(_libc().mremap(ctypes.c_void_p(source), size, size, _MAY_MOVE | _FIXED, ctypes.c_void_p(address)))


def _checked(address: int) -> int:
    """Returns an address that mmap or mremap returned. Raises `OSError` if they failed."""
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    return libc
