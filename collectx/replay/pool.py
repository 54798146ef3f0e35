"""Memory for large values that frames share.

The next observation of a frame is usually the observation of the following one, so a ring would store each image twice.
A pool stores such a value once; a frame has the places of its two values:

    frame    0      1      2      3      4           an episode ends with frame 2
    places  0, 1   1, 2   2, 3   4, 5   5, 6

Hold the buffer's lock when you call these methods, except `read`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

import numpy as np
import torch
from xxhash import xxh3_128_digest

from collectx.batch import Key, Layout, Leaf, as_array, as_tensor

# Smaller values are stored twice: finding equal ones takes longer than copying them, and places take memory too.
_LARGE_BYTES = 1024
_HEADER_BYTES = 64
# How many next observations a writer remembers that no frame has begun with: the ends of its last batches.
_MAX_OPEN = 4096


def shared_keys(leaves: Mapping[Key, Leaf]) -> list[Key]:
    """Returns the keys of large leaves that `next` contains with the same shape and dtype."""
    return [
        key
        for key, leaf in leaves.items()
        if math.prod(leaf.shape) * leaf.dtype.itemsize >= _LARGE_BYTES
        and leaves.get(("next", *key)) == leaf.under("next")
    ]


class Pool:
    """The values of `leaf` and of the leaf in `next` with the same name, for the frames at `capacity` positions.

    Args:
        memory: `[Pool.nbytes(leaf, capacity)]` uint8, shared memory that is initially zero.
    """

    def __init__(self, leaf: Leaf, capacity: int, memory: torch.Tensor):
        self.leaf = leaf
        tensors = _layout(leaf, capacity).tensors(memory[_HEADER_BYTES:], (capacity, 2))
        arrays = {key[0]: as_array(tensor) for key, tensor in tensors.items()}
        # Each frame needs two places at most.
        self._values = arrays["values"].reshape(-1, *leaf.shape)
        self._places = arrays["places"]
        # How many frames have a place, and the places that no frame has, of those before the end.
        self._uses, self._free = arrays["uses"].reshape(-1), arrays["free"].reshape(-1)
        # Number of free places, and the end of the places that were ever used.
        self._counts = memory[: 2 * 8].numpy().view(np.int64)
        # The place of each value that this process wrote as a next one only, by its digest.
        self._open: dict[bytes, int] = {}

    @staticmethod
    def nbytes(leaf: Leaf, capacity: int) -> int:
        """The size of the memory in bytes, with two values for each frame. Pages without values take none."""
        return _HEADER_BYTES + _layout(leaf, capacity).nbytes

    @property
    def spare_nbytes(self) -> int:
        """How much of the memory stays without values, if each frame has one value of its own."""
        return self._values.nbytes // 2

    def read(self, positions: np.ndarray, is_next: bool) -> np.ndarray:
        """Returns copies of the values of frames, `[*positions.shape, *shape]`."""
        return self._values.take(self._places[positions, int(is_next)], axis=0)

    def write(self, positions: np.ndarray, values: np.ndarray, following: np.ndarray) -> None:
        """Stores the two values of each frame, `[positions, *shape]`. Positions with values must be released first."""
        known: dict[bytes, int] = {}
        for column, rows in enumerate((values, following)):
            for position, row in zip(positions, np.ascontiguousarray(rows), strict=True):
                digest = xxh3_128_digest(row)
                if (place := known.get(digest)) is None:
                    place = self._open.pop(digest, -1)
                    # Other values may be there now.
                    if place < 0 or not self._uses[place] or not np.array_equal(self._values[place], row):
                        place = int(self._take(1)[0])
                        self._values[place] = row
                    known[digest] = place
                    if column == 1:
                        self._open[digest] = place
                self._places[position, column] = place
        np.add.at(self._uses, self._places[positions].reshape(-1), 1)
        for digest in list(islice(self._open, max(0, len(self._open) - _MAX_OPEN))):
            del self._open[digest]

    def _take(self, count: int) -> np.ndarray:
        """Returns `count` places without a value."""
        num_free, end = self._counts
        reused = min(count, int(num_free))
        self._counts[:] = num_free - reused, end + count - reused
        return np.concatenate([self._free[num_free - reused : num_free], np.arange(end, end + count - reused)])

    def release(self, positions: np.ndarray) -> None:
        """Removes the values of frames; those that no other frame has make room for others."""
        places = self._places[positions].reshape(-1)
        np.subtract.at(self._uses, places, 1)
        self._set_free(np.unique(places[self._uses[places] == 0]), int(self._counts[0]))

    def repair(self, positions: np.ndarray) -> None:
        """Counts uses anew, after a process died in a change. `positions` are those of all frames with values."""
        self._uses[:] = 0
        np.add.at(self._uses, self._places[positions].reshape(-1), 1)
        self._set_free(np.flatnonzero(self._uses[: self._counts[1]] == 0), 0)

    def _set_free(self, places: np.ndarray, begin: int) -> None:
        end = begin + len(places)
        self._free[begin:end] = places
        self._counts[0] = end

    def views(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns views of the values, `[n, *shape]`, and of the places of the first positions, `[size, 2]`."""
        values = self._values[: self._counts[1]]
        return as_tensor(values, self.leaf.dtype), torch.from_numpy(self._places[:size])

    def restore(
        self, positions: np.ndarray, values: torch.Tensor, places: torch.Tensor, saved_positions: np.ndarray
    ) -> None:
        """Replaces all values by those of the frames at `saved_positions` in the `views` of a pool."""
        self._counts[:] = 0
        saved, which = np.unique(places.numpy()[saved_positions], return_inverse=True)
        taken, saved_values = self._take(len(saved)), as_array(values)
        for place, at in zip(taken, saved, strict=True):
            self._values[place] = saved_values[at]
        self._places[positions] = taken[which].reshape(-1, 2)
        self.repair(positions)


def _layout(leaf: Leaf, capacity: int) -> Layout:
    parts = {"values": (leaf.shape, leaf.dtype), "places": ((), torch.int64), "free": ((), torch.int64)}
    parts["uses"] = ((), torch.int32)
    return Layout([Leaf((name,), shape, dtype) for name, (shape, dtype) in parts.items()], capacity, 2)
