"""The ring of frames: new frames overwrite the oldest.

Frames have indices from 0, in the order in which they are written. Frame n is at position n % capacity. The ring
contains the frames from `first` to `end`, exclusive:

    position   0    1    2    3    4    5        capacity = 6, end = 8, first = 4
    frame      6    7   (2)  (3)   4    5        2 and 3 are being overwritten: `first` was advanced first

So if a writer is killed while it copies, the ring contains fewer frames, but no partly written one. Large values that
frames share are in pools (`pool.py`).

Hold the buffer's lock when you call these methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from collectx.batch import Key, Layout, Leaf, as_array, as_tensor
from collectx.errors import DataError
from collectx.memory import SharedMemory, barrier
from collectx.replay.pool import Pool, shared_keys

# Keys of samples besides those of the frames.
_SAMPLE_KEYS = ("index", "priority_weight")

_HEADER_BYTES = 2**16
_COUNTS_BYTES = 64
_RESTORED_AT_ONCE = 4096


class Ring:
    """Shared memory for `capacity` frames. The first frames that any process writes fix the leaves.

    Args:
        num_extra_bytes: number of bytes of shared memory for the sampler, initially zero.
        directory: see `SharedMemory`.

    Attributes:
        leaves: the leaves of a frame; empty until `is_laid_out`.
        extra: the sampler's memory, `[num_extra_bytes]` uint8; empty until `is_laid_out`.
    """

    def __init__(self, capacity: int, num_extra_bytes: int, directory: Path | None = None):
        self._init(capacity, num_extra_bytes, SharedMemory("replay", directory))

    def _init(self, capacity: int, num_extra_bytes: int, memory: SharedMemory) -> None:
        self.capacity = capacity
        self.leaves: tuple[Leaf, ...] = ()
        self.extra = np.zeros(0, np.uint8)
        self._arrays: dict[Key, np.ndarray] = {}
        # By the key at the root, which stands for the one in `next` too.
        self._pools: dict[Key, Pool] = {}
        self._num_extra_bytes = num_extra_bytes
        self._memory = memory
        self._header = memory.map(_HEADER_BYTES).numpy()
        # Length of the layout's JSON, `first`, `end`, `is_changing`, `num_restores`.
        self._counts = self._header[:_COUNTS_BYTES].view(np.int64)

    def __getstate__(self) -> tuple:
        return self.capacity, self._num_extra_bytes, self._memory

    def __setstate__(self, state: tuple) -> None:
        self._init(*state)

    @property
    def first(self) -> int:
        """Index of the oldest frame."""
        # Above `end` while a batch of more than `capacity` frames is written, when the ring is empty.
        return int(min(self._counts[1], self._counts[2]))

    @property
    def end(self) -> int:
        """Index of the next frame, which is the number of frames written so far."""
        return int(self._counts[2])

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def nbytes(self) -> int:
        """Size of the shared memory in bytes, if each frame has one large value of its own; before `is_laid_out`, the
        size of the header. Pages that were never written take no memory."""
        return self._memory.nbytes - sum(pool.spare_nbytes for pool in self._pools.values())

    @property
    def is_changing(self) -> bool:
        """Whether a change of frames or sampler memory is incomplete. If you hold the lock, True means that a process
        died in the change."""
        return bool(self._counts[3])

    @is_changing.setter
    def is_changing(self, value: bool) -> None:
        self._counts[3] = value

    @property
    def num_restores(self) -> int:
        """Number of calls of `restore` by all processes."""
        return int(self._counts[4])

    def is_laid_out(self) -> bool:
        """Whether any process has written frames. Maps them if so."""
        if not self.leaves and self._counts[0]:
            text = self._header[_COUNTS_BYTES : _COUNTS_BYTES + int(self._counts[0])].tobytes()
            self._map(map(Leaf.from_json, json.loads(text)))
        return bool(self.leaves)

    def lay_out(self, leaves: Mapping[Key, Leaf]) -> None:
        """Allocates memory for frames of `leaves`, unless a process has done so. Raises DataError if the ring
        contains frames with other leaves."""
        if self.is_laid_out():
            if differences := _differences({leaf.key: leaf for leaf in self.leaves}, leaves):
                raise DataError(
                    f"these frames do not match those in the buffer: {', '.join(differences)}. All frames of a buffer "
                    "have the keys, shapes and dtypes of its first batch. Use a new buffer for others."
                )
            return
        text = json.dumps([leaf.to_json() for leaf in leaves.values()]).encode()
        if len(text) > _HEADER_BYTES - _COUNTS_BYTES:
            raise DataError(
                f"the keys of the batch take {len(text)} bytes, but the limit is 64 KiB. Use fewer or shorter keys."
            )
        self._map(leaves.values())
        self._header[_COUNTS_BYTES : _COUNTS_BYTES + len(text)] = np.frombuffer(text, np.uint8)
        self._counts[0] = len(text)

    def _map(self, leaves: Iterable[Leaf]) -> None:
        by_key = {leaf.key: leaf for leaf in leaves}
        shared = [by_key[key] for key in shared_keys(by_key)]
        keys = {key for leaf in shared for key in (leaf.key, ("next", *leaf.key))}
        layout = Layout([leaf for key, leaf in by_key.items() if key not in keys], 1, self.capacity)
        sizes = [layout.nbytes, *(Pool.nbytes(leaf, self.capacity) for leaf in shared)]
        *begins, end = accumulate(sizes, initial=_HEADER_BYTES)
        try:
            memory = self._memory.map(end + self._num_extra_bytes)
        except OSError as error:
            size = f"{self.capacity} frames of {sum(sizes) / self.capacity:,.0f} bytes"
            lower = "a lower capacity (trainer.buffer_frames of a run)"
            error.add_note(f"The replay buffer needs memory for {size}. Use {lower}.")
            raise
        blocks = [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
        tensors = layout.tensors(blocks[0], (self.capacity,))
        self.leaves = tuple(by_key.values())
        self.extra = memory[end:].numpy()
        self._arrays = {key: as_array(tensor) for key, tensor in tensors.items()}
        self._pools = {
            leaf.key: Pool(leaf, self.capacity, block) for leaf, block in zip(shared, blocks[1:], strict=True)
        }

    def _positions(self, first: int, end: int) -> np.ndarray:
        return np.arange(first, end) % self.capacity

    def drop(self, count: int) -> None:
        """Removes the oldest frames to make room for `count` new ones."""
        before = self.first
        self._counts[1] = max(before, self.end + count - self.capacity)
        barrier()
        for pool in self._pools.values():
            pool.release(self._positions(before, self.first))

    def repair(self) -> None:
        """Restores what a process that died in a change left incomplete."""
        for pool in self._pools.values():
            pool.repair(self._positions(self.first, self.end))

    def write(self, frames: Mapping[Key, np.ndarray], count: int) -> None:
        """Appends frames, `[count, *shape]` per leaf; only the last `capacity` if there are more. Call `drop(count)`
        first."""
        kept = min(count, self.capacity)
        start = (self.end + count - kept) % self.capacity
        head = min(kept, self.capacity - start)
        for key, array in self._arrays.items():
            newest = frames[key][count - kept :]
            array[start : start + head] = newest[:head]
            if head < kept:
                array[: kept - head] = newest[head:]
        for key, pool in self._pools.items():
            positions = self._positions(self.end + count - kept, self.end + count)
            pool.write(positions, frames[key][count - kept :], frames["next", *key][count - kept :])
        self._counts[2] += count

    def read(self, index: np.ndarray, *keys: Key) -> list[np.ndarray]:
        """Returns copies of leaves of the frames `index`, which must be in the ring: `[*index.shape, *shape]` each."""
        positions = index % self.capacity
        return [self._read(positions, key) for key in keys]

    def _read(self, positions: np.ndarray, key: Key) -> np.ndarray:
        if key in self._arrays:
            return self._arrays[key].take(positions, axis=0)
        return (
            self._pools[key].read(positions, False)
            if key in self._pools
            else self._pools[key[1:]].read(positions, True)
        )

    def frames(self, index: np.ndarray) -> dict[Key, torch.Tensor]:
        """Returns copies of all leaves of the frames `index`, as tensors; see `read`."""
        arrays = self.read(index, *(leaf.key for leaf in self.leaves))
        return {leaf.key: as_tensor(array, leaf.dtype) for leaf, array in zip(self.leaves, arrays, strict=True)}

    def contains(self, index: np.ndarray) -> np.ndarray:
        """Returns, for each index, whether the frame is in the ring, bool."""
        return (index >= self.first) & (index < self.end)

    def views(self) -> tuple[dict[Key, torch.Tensor], dict[Key, tuple[torch.Tensor, torch.Tensor]]]:
        """Returns views of the leaves at all positions written so far, `[min(end, capacity), *shape]` each, and those
        of the pools (`Pool.views`)."""
        size = min(self.end, self.capacity)
        dtypes = {leaf.key: leaf.dtype for leaf in self.leaves}
        frames = {key: as_tensor(array[:size], dtypes[key]) for key, array in self._arrays.items()}
        return frames, {key: pool.views(size) for key, pool in self._pools.items()}

    def restore(
        self,
        first: int,
        end: int,
        frames: Mapping[Key, np.ndarray],
        pools: Mapping[Key, tuple[torch.Tensor, torch.Tensor]],
        capacity: int,
    ) -> None:
        """Restores the newest frames from the `views` of a ring with this `capacity`. This ring must be laid out."""
        first = max(first, end - self.capacity)
        self._counts[4] += 1
        self._counts[1] = end  # no frames while bytes are written
        self._counts[2] = end
        barrier()
        for start in range(first, end, _RESTORED_AT_ONCE):
            index = np.arange(start, min(start + _RESTORED_AT_ONCE, end))
            for key, values in frames.items():
                self._arrays[key][index % self.capacity] = values[index % capacity]
        for key, pool in self._pools.items():
            pool.restore(self._positions(first, end), *pools[key], np.arange(first, end) % capacity)
        self._counts[1] = first


def _differences(expected: Mapping[Key, Leaf], actual: Mapping[Key, Leaf]) -> list[str]:
    if expected == actual:
        return []
    differences = [f"{'.'.join(key)!r} is missing" for key in expected if key not in actual]
    differences += [f"{'.'.join(key)!r} is new" for key in actual if key not in expected]
    return differences + [
        f"{'.'.join(key)!r} has shape {leaf.shape} and dtype {leaf.dtype} instead of {expected[key].shape} and "
        f"{expected[key].dtype}"
        for key, leaf in actual.items()
        if expected.get(key, leaf) != leaf
    ]


def flatten_batch(batch: TensorDictBase, count: int) -> tuple[dict[Key, Leaf], dict[Key, np.ndarray]]:
    """Returns the leaves of a batch of `count` frames, and their arrays `[count, *shape]`: views of a contiguous batch,
    otherwise copies. Raises `DataError` if a buffer cannot store them."""
    leaves: dict[Key, Leaf] = {}
    frames: dict[Key, np.ndarray] = {}
    dims = batch.batch_dims
    for key, tensor in iter_leaves(batch):
        if not isinstance(tensor, torch.Tensor):
            raise DataError(
                f"{'.'.join(key)!r} is of type {type(tensor).__name__}, but a buffer stores only tensors. Convert it "
                "to a tensor, or remove it from the batch."
            )
        if key[0] in _SAMPLE_KEYS:
            raise DataError(f"the batch contains the key {key[0]!r}, which is reserved for samples. Remove it.")
        leaves[key] = Leaf(key, tuple(tensor.shape[dims:]), tensor.dtype)
        frames[key] = as_array(tensor).reshape(count, *leaves[key].shape)
    if not leaves:
        raise DataError("the batch contains no tensor to store")
    return leaves, frames


def iter_leaves(nested: Mapping[str, Any] | TensorDictBase, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yields the keys and values of nested mappings or TensorDicts."""
    for name, value in nested.items():
        if isinstance(value, Mapping | TensorDictBase):
            yield from iter_leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value
