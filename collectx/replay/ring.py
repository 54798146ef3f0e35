"""Frames in a ring: the oldest are overwritten by the newest.

Frames are numbered from 0 in the order in which they were written; frame n lies at position n % capacity, and the ring
holds the frames from `first` to `end`, the latter not included:

    position   0    1    2    3    4    5        capacity = 6, end = 8, first = 4
    frame      6    7   (2)  (3)   4    5        2 and 3 are being overwritten: `first` went on before their bytes did

So a writer that is killed in the midst of its copy leaves a ring that is smaller, and no torn frame in it.

Every method but the constructor is called with the buffer's lock held. Must not know samplers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from collectx.batch import Key, Layout, Leaf
from collectx.errors import ShapeError
from collectx.replay.memory import Memory, barrier

_HEADER_BYTES = 2**16
_COUNTS_BYTES = 64

# Only bytes are moved: what numpy does not know travels as what it knows.
_STAND_INS = {torch.bfloat16: torch.int16}


class Ring:
    """The memory of `capacity` frames. Their leaves are those of the first frames that any process writes.

    Args:
        num_extra_bytes: zeroed memory beside the frames, for who draws from them.
        directory: see `Memory`.

    Attributes:
        leaves: empty until `is_laid_out`.
        extra: `[num_extra_bytes]` uint8, likewise.
    """

    def __init__(self, capacity: int, num_extra_bytes: int, directory: Path | None = None):
        self._begin(capacity, num_extra_bytes, Memory(directory))

    def _begin(self, capacity: int, num_extra_bytes: int, memory: Memory) -> None:
        self.capacity = capacity
        self.leaves: tuple[Leaf, ...] = ()
        self.extra = np.zeros(0, np.uint8)
        self._arrays: dict[Key, np.ndarray] = {}
        self._num_extra_bytes = num_extra_bytes
        self._memory = memory
        self._header = memory.map(_HEADER_BYTES).numpy()
        # Length of the layout's text, first, end, whether somebody is changing something, how often it was restored.
        self._counts = self._header[:_COUNTS_BYTES].view(np.int64)

    def __getstate__(self) -> tuple:
        return self.capacity, self._num_extra_bytes, self._memory

    def __setstate__(self, state: tuple) -> None:
        self._begin(*state)

    @property
    def first(self) -> int:
        """The oldest frame's number."""
        # Above `end` while a batch of more than `capacity` frames is being written: then there is none.
        return int(min(self._counts[1], self._counts[2]))

    @property
    def end(self) -> int:
        """The next frame's number: how many were ever written."""
        return int(self._counts[2])

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def is_changing(self) -> bool:
        """Whether frames, or what goes with them, are being changed; seen by another process only if who did died."""
        return bool(self._counts[3])

    @is_changing.setter
    def is_changing(self, value: bool) -> None:
        self._counts[3] = value

    @property
    def num_restores(self) -> int:
        """How often `restore` was called, by all processes."""
        return int(self._counts[4])

    def is_laid_out(self) -> bool:
        """Whether any process has written frames, so that there are leaves."""
        if not self._arrays and self._counts[0]:
            text = self._header[_COUNTS_BYTES : _COUNTS_BYTES + int(self._counts[0])].tobytes()
            self._map([Leaf(tuple(k), tuple(s), getattr(torch, d)) for k, s, d in json.loads(text)])
        return bool(self._arrays)

    def lay_out(self, leaves: Mapping[Key, Leaf]) -> None:
        """Makes the memory for frames of `leaves`, if no process has yet.

        Raises:
            ShapeError: frames of other leaves are there already.
        """
        if self.is_laid_out():
            if differences := _differences({leaf.key: leaf for leaf in self.leaves}, leaves):
                raise ShapeError(f"the frames are not like those in the buffer: {'; '.join(differences)}")
            return
        rows = [[leaf.key, leaf.shape, str(leaf.dtype).removeprefix("torch.")] for leaf in leaves.values()]
        text = json.dumps(rows).encode()
        if len(text) > _HEADER_BYTES - _COUNTS_BYTES:
            raise ShapeError(f"{len(leaves)} leaves have names of {len(text)} bytes together: the buffer has 64 KiB")
        self._map(leaves.values())
        self._header[_COUNTS_BYTES : _COUNTS_BYTES + len(text)] = np.frombuffer(text, np.uint8)
        self._counts[0] = len(text)

    def _map(self, leaves: Any) -> None:
        layout = Layout(list(leaves), 1, self.capacity)
        memory = self._memory.map(_HEADER_BYTES + layout.nbytes + self._num_extra_bytes)
        end = _HEADER_BYTES + layout.nbytes
        tensors = layout.tensors(memory[_HEADER_BYTES:end], (self.capacity,))
        self.leaves = layout.leaves
        self.extra = memory[end:].numpy()
        self._arrays = {key: as_array(tensor) for key, tensor in tensors.items()}

    def drop(self, count: int) -> None:
        """Makes room for `count` more frames: the oldest are no longer there."""
        self._counts[1] = max(self.first, self.end + count - self.capacity)
        barrier()

    def write(self, frames: Mapping[Key, np.ndarray], count: int) -> None:
        """Appends frames, `[count, *shape]` for every leaf; of more than `capacity` only the last stay. `drop(count)`
        comes before."""
        kept = min(count, self.capacity)
        start = (self.end + count - kept) % self.capacity
        head = min(kept, self.capacity - start)
        for key, array in self._arrays.items():
            rows = frames[key]
            array[start : start + head] = rows[count - kept : count - kept + head]
            if head < kept:
                array[: kept - head] = rows[count - kept + head :]
        self._counts[2] += count

    def read(self, index: np.ndarray, *keys: Key) -> list[np.ndarray]:
        """Leaves of the frames numbered `index`, which are there: `[*index.shape, *shape]` each, the caller's own."""
        position = index % self.capacity
        return [self._arrays[key].take(position, axis=0) for key in keys]

    def view(self, key: Key) -> np.ndarray:
        """One leaf of all positions that were ever written, `[min(end, capacity), *shape]`, over the ring's memory."""
        return self._arrays[key][: min(self.end, self.capacity)]

    def restore(self, first: int, end: int, frames: Mapping[Key, np.ndarray]) -> None:
        """Puts back what `first`, `end` and `view` were. The ring is laid out and of the same capacity.

        Args:
            frames: of every leaf, or of none where there were no frames.
        """
        self._counts[4] += 1
        self._counts[1] = end  # none, while their bytes are written
        self._counts[2] = end
        barrier()
        for key, rows in frames.items():
            self._arrays[key][: len(rows)] = rows
        self._counts[1] = first


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """`tensor`'s elements for `Ring.write`, on the CPU; not copied where they are there already."""
    tensor = tensor.detach()
    stand_in = _STAND_INS.get(tensor.dtype)
    return (tensor if stand_in is None else tensor.contiguous().view(stand_in)).cpu().numpy()


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The way back from `as_array`."""
    tensor = torch.from_numpy(np.asarray(array))  # a scalar of numpy is none of its arrays
    return tensor.view(dtype) if dtype in _STAND_INS else tensor


def _differences(here: Mapping[Key, Leaf], given: Mapping[Key, Leaf]) -> list[str]:
    if here == given:
        return []
    found = [f"{'.'.join(key)} is missing" for key in here if key not in given]
    found += [f"{'.'.join(key)} is not among its leaves" for key in given if key not in here]
    for key, leaf in given.items():
        if key in here and here[key] != leaf:
            one, other = leaf, here[key]
            found.append(f"{'.'.join(key)} is {one.shape} {one.dtype}, there it is {other.shape} {other.dtype}")
    return found
