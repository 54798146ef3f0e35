"""One block of memory for all slots and weights, shared between processes or private to one.

    | header: newest versions, stop, preempted | progress | shared weights | weights of worker 0 | ... | region 0 |

Weights are double-buffered. The pointer is `version << 1 | buffer`. The trainer writes a newer version into the other
buffer and then stores the pointer. A reader that finds the pointer unchanged after its copy has read a single version.
A worker acts with the shared weights or its individual ones, whichever are newer. Pages that were never written take no
memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from collectx import progress
from collectx.batch import ALIGNMENT_BYTES, PerSlot, Slot, aligned
from collectx.memory import SharedMemory, barrier, batch_memory
from collectx.transport.base import Arrival, SlotReport, SlotSpec, WeightWriters, keep_granted
from collectx.transport.leases import Leases

_POINTER_BYTES = 8
# The pointer to weights that were never published (version -1).
_NOTHING = -2
# In place of a worker's index: an end that uses only the shared weights.
NO_WORKER = -1


class SlabLayout:
    """The offsets and sizes of the parts of a slab, in bytes.

    Attributes:
        num_regions: number of regions; the first ones contain the slots, the others are spare.
        region_nbytes: the distance between two regions; whole pages if there are spare ones.
        pointers_nbytes, weights_nbytes, nbytes: sizes of all pointers, of one buffer for weights, and of the slab.
        progress_start, weights_start, regions_start: offsets of these parts.
    """

    def __init__(self, spec: SlotSpec):
        self.region = spec.layout(spec.num_workers if spec.stacked else 1)
        self.pointers_nbytes = aligned((1 + spec.num_workers) * _POINTER_BYTES)
        self.weights_nbytes = aligned(spec.weights_nbytes)
        self.progress_start = self.pointers_nbytes + ALIGNMENT_BYTES
        # Each worker counts in its own cache lines.
        self.weights_start = self.progress_start + spec.num_workers * ALIGNMENT_BYTES
        alignment = mmap.PAGESIZE if spec.num_spare else ALIGNMENT_BYTES
        self.region_nbytes = aligned(self.region.nbytes, alignment)
        weights_nbytes = 2 * (1 + spec.num_workers) * self.weights_nbytes
        self.regions_start = aligned(self.weights_start + weights_nbytes, alignment)
        num_slots = spec.num_slots if spec.stacked else spec.num_slots * spec.num_workers
        self.num_regions = num_slots + spec.num_spare
        self.nbytes = self.regions_start + self.num_regions * self.region_nbytes


class Slab:
    """The memory of all slots and weights.

    Args:
        shared: whether workers in other processes map the slab. It can then be pickled, but only as an argument of a
            process that is being started.
        device: the device of the regions, if the slab is not shared; None: the CPU, like the rest.
    """

    def __init__(self, spec: SlotSpec, shared: bool, device: torch.device | None = None):
        self._map(spec, SharedMemory("slab") if shared else None, device)
        for owner in range(1 + spec.num_workers):
            self._pointers[owner] = _NOTHING
        self._pointers[0] = 2 * (spec.first_version - 1)
        # With `SlotSpec.grants_name_version`: the pointers to the last two versions that were granted, by version.
        self._granted: dict[int, int] = {}
        slots = range(spec.num_slots) if spec.stacked else product(range(spec.num_workers), range(spec.num_slots))
        self.leases = Leases(slots, [self.region(index) for index in range(self._layout.num_regions)], shared)

    def _map(self, spec: SlotSpec, shared: SharedMemory | None, device: torch.device | None = None) -> None:
        self.spec = spec
        self._shared = shared
        self._layout = places = SlabLayout(spec)
        if shared is None:
            # Pages take no memory until they are written, as those of individual weights rarely are.
            private = mmap.mmap(-1, places.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory = torch.frombuffer(private, dtype=torch.uint8)
        else:
            self._memory = shared.map(places.nbytes)
        regions = self._memory[places.regions_start :]
        self._regions = regions if device is None else torch.zeros_like(regions, device=device)
        header = self._memory[: places.weights_start].numpy()
        pointers_nbytes = places.pointers_nbytes
        # The pointer to the shared weights, then those to the individual weights of each worker.
        self._pointers: memoryview = header[: (1 + spec.num_workers) * _POINTER_BYTES].view(np.int64).data
        self.stop: memoryview = header[pointers_nbytes : pointers_nbytes + 1].data
        self.preempted: memoryview = header[pointers_nbytes + 1 : pointers_nbytes + 2].data

    def __getstate__(self) -> tuple[SlotSpec, SharedMemory]:
        assert self._shared is not None
        return self.spec, self._shared

    def __setstate__(self, state: tuple[SlotSpec, SharedMemory]) -> None:
        self._map(*state)
        self.close_descriptor()

    def close_descriptor(self) -> None:
        """Closes the file descriptor. The memory stays mapped until its last tensor is gone."""
        self._shared = None

    def region(self, index: int) -> torch.Tensor:
        """Returns the bytes of a region, flat uint8, laid out as `SlabLayout.region`."""
        start = index * self._layout.region_nbytes
        return self._regions[start : start + self._layout.region.nbytes]

    def region_of(self, worker: int, slot: int) -> int:
        """Returns the index of the region that contains a slot. Only the trainer's process knows it."""
        return self.leases.region_of(self._key(worker, slot))

    def slot_in(self, worker: int, region: int) -> int:
        """Returns the slot of a worker that a region contains. Only the trainer's process knows it."""
        slot = self.leases.slot_in(region)
        return slot if self.spec.stacked else slot[1]

    def _key(self, worker: int, slot: int) -> Any:
        """Returns the key of a slot in `leases`, for a region with the slots of all workers, or of one."""
        return slot if self.spec.stacked else (worker, slot)

    def progress(self, worker: int) -> memoryview:
        """Returns the counters of a worker; see `collectx.progress`."""
        start = self._layout.progress_start + worker * ALIGNMENT_BYTES
        return self._memory[start : start + progress.NBYTES].numpy().view(np.int64).data

    def gather(self, parts: Sequence[Arrival], copy: bool) -> torch.Tensor:
        """See `Transport.gather`."""
        regions = [self.leases.memory(self._key(part.worker, part.slot)) for part in parts]
        if self._is_region(parts):
            return batch_memory.copy(regions[0]) if copy else regions[0]
        rows = self.spec.rows
        runs = [self._layout.region.runs(part.worker * rows if self.spec.stacked else 0, rows) for part in parts]
        return concatenate(self.spec, [*zip(regions, runs, strict=True)])

    def lease(self, parts: Sequence[Arrival]) -> torch.Tensor | None:
        """See `Transport.lease`."""
        return self.leases.lease(self._key(parts[0].worker, parts[0].slot)) if self._is_region(parts) else None

    def _is_region(self, parts: Sequence[Arrival]) -> bool:
        """Whether the parts are a whole region."""
        return len(parts) == self.spec.num_workers if self.spec.stacked else len(parts) == 1

    def release(self, parts: Sequence[Arrival]) -> None:
        """See `Transport.release`."""
        for slot in {self._key(part.worker, part.slot) for part in parts}:
            self.leases.release(slot)

    def slot(self, worker: int, region: int) -> Slot:
        """Returns a worker's part of a region, whose tensors `[rows, steps, *shape]` are views of the slab."""
        slot = self._layout.region.slot(self.region(region))
        return slot.narrow(worker * self.spec.rows, self.spec.rows) if self.spec.stacked else slot

    @property
    def version(self) -> int:
        """The newest published version of any weights; -1 before the first."""
        return max(self._pointers) >> 1

    def publish(self, writes: WeightWriters) -> int:
        """See `Transport.publish`. Only one process may publish."""
        version = self.version + 1
        pointers = {}
        for worker, write in writes.items():
            # Owner 0 of weights means all workers, owner 1 + w means worker w alone.
            owner = 0 if worker is None else 1 + worker
            # Every worker has moved past the buffer that was not granted last, so that one is overwritten
            # (`Schedule.must_wait_to_publish`).
            last = [*self._granted.values()][-1] if self._granted else self._pointers[owner]
            pointers[owner] = 2 * version + 1 - last % 2
            write(self._weights(owner, pointers[owner]))
        barrier()  # the pointers must not become visible before the bytes
        for owner, pointer in pointers.items():
            self._pointers[owner] = pointer
        barrier()  # nor the bytes of the next version before the pointers
        return version

    def pointer_to(self, version: int) -> int:
        """Returns the pointer to the weights of a version that is being granted: the newest version, or one of the last
        two that were granted. Their buffer keeps these weights until another version has been granted."""
        assert version in self._granted or version == self._pointers[0] >> 1
        keep_granted(self._granted, version, self._pointers[0])
        return self._granted[version]

    def newest_weights(self) -> torch.Tensor:
        return self._weights(0, self._pointers[0]).clone()

    def refresh(self, read: Callable[[torch.Tensor], None], version: int, worker: int) -> int:
        while True:
            shared, individual = self._pointers[0], self._pointers[1 + worker]
            newest = max(shared, individual)
            if newest >> 1 == version:
                return version
            barrier()
            read(self._weights(0 if shared > individual else 1 + worker, newest))
            barrier()
            version = newest >> 1

    def read_granted(self, read: Callable[[torch.Tensor], None], version: int, pointer: int) -> int:
        """Reads weights like `refresh`, but those of a result of `pointer_to`; none before the first grant."""
        if pointer == _NOTHING or pointer >> 1 == version:
            return version
        read(self._weights(0, pointer))
        return pointer >> 1

    def _weights(self, owner: int, pointer: int) -> torch.Tensor:
        start = self._layout.weights_start + (2 * owner + pointer % 2) * self._layout.weights_nbytes
        return self._memory[start : start + self.spec.weights_nbytes]


class SlabLink:
    """Base class of the workers' ends over a slab. The inference server's end has the index `NO_WORKER`. With
    `SlotSpec.grants_name_version`, `pointer` points to the weights that `refresh` reads; see `Slab.pointer_to`."""

    def __init__(self, slab: Slab, worker: int):
        self.slot_spec = slab.spec
        self.worker = worker
        self._slab = slab
        self.pointer = _NOTHING

    @property
    def slots(self) -> PerSlot[Slot]:
        return self.slots_of(self.worker)

    def slots_of(self, worker: int) -> PerSlot[Slot]:
        """Returns the slots of a worker, this one or another. To the workers, a region is a slot."""
        return PerSlot(partial(self._slab.slot, worker))

    @property
    def stop(self) -> memoryview:
        return self._slab.stop

    @property
    def preempted(self) -> memoryview:
        return self._slab.preempted

    def report_progress(self) -> None:
        progress.report_to(self._slab.progress(self.worker))

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        if self.slot_spec.grants_name_version:
            return self._slab.read_granted(read, version, self.pointer)
        return self._slab.refresh(read, version, self.worker)


class SlabTransport:
    """Base class of the transports whose slots and weights are in a slab."""

    carries_objects = True

    def __init__(self, spec: SlotSpec, shared: bool, device: torch.device | None = None):
        self.spec = spec
        self.slab = slab = Slab(spec, shared, device)
        self.gather, self.lease, self.release = slab.gather, slab.lease, slab.release
        self.publish, self.newest_weights = slab.publish, slab.newest_weights

    def expect(self, worker: int, make_spec: Callable[[], dict[str, Any]]) -> None:
        pass  # only the trainer itself can connect a worker

    def _arrival(self, worker: int, region: int, report: SlotReport) -> Arrival:
        """Returns the arrival of the slot that a worker filled, which knows only the region."""
        return Arrival(worker, self.slab.slot_in(worker, region), report)

    def preempt(self, requested: bool) -> None:
        self.slab.preempted[0] = requested

    def interrupt(self) -> None:
        self.slab.stop[0] = 1


def concatenate(spec: SlotSpec, parts: Sequence[tuple[torch.Tensor, Sequence[slice]]]) -> torch.Tensor:
    """Returns a copy of slots in new memory, flat uint8, laid out as `Layout(leaves, rows * len(parts), steps)`.
    `parts` are the memory of each part's region, and the slices of its rows (`Layout.runs`)."""
    layout = spec.layout(len(parts))
    memory = batch_memory.empty(layout.nbytes, parts[0][0].device)
    target = _bytes(memory)
    for index, (source, runs) in enumerate(parts):
        array = _bytes(source)
        for to, run in zip(layout.runs(index * spec.rows, spec.rows), runs, strict=True):
            target[to] = array[run]
    return memory


def _bytes(memory: torch.Tensor) -> Any:
    # NumPy copies short runs of bytes five times as fast as torch.
    return memory if memory.is_cuda else memory.numpy()
