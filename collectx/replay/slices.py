"""Samples consecutive frames of one trajectory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from collectx.batch import TRAJ_IDS, Key, Leaf
from collectx.errors import ConfigError, ShapeError
from collectx.replay.ring import Ring
from collectx.replay.sampler import Sampler

_DONE: Key = ("next", "done")
_ROUNDS = 8


class SliceSampler(Sampler):
    """Samples slices of `slice_len` consecutive frames. All possible slices are equally likely, and one may be
    drawn twice.

    A sample of `size` frames is `[size // slice_len, slice_len]`, whose second dimension is named "time".
    `sample.reshape(-1)` takes the form of TorchRL's `SliceSampler`.

    A slice consists of frames that were written one after the other, with the same `("collector", "traj_ids")`;
    `("next", "done")` may only be true in its last frame. So write frames in the order of collection, without gaps
    within a trajectory. A slice of a batch of several envs is within one row. Slices extend from one batch of a worker
    into its next one if the worker steps a single env and no other batch is written in between. Episodes shorter than
    `slice_len` are never sampled.

    Args:
        slice_len: number of frames per slice.
        seed: see `Sampler`.

    Raises:
        ConfigError: `slice_len` is below 1.
    """

    def __init__(self, slice_len: int, seed: int | None = None):
        if slice_len < 1:
            raise ConfigError(f"slice_len={slice_len} must be at least 1.")
        super().__init__(seed)
        self.slice_len = slice_len

    def nbytes(self, capacity: int) -> int:
        return 8 * capacity

    def check(self, leaves: Mapping[Key, Leaf]) -> None:
        if missing := [".".join(key) for key in (TRAJ_IDS, _DONE) if key not in leaves]:
            raise ShapeError(
                f"SliceSampler needs {' and '.join(map(repr, missing))}, which these frames lack. Fill the "
                "buffer from a collector with track_traj_ids=True."
            )
        for key in (TRAJ_IDS, _DONE):
            if math.prod(leaves[key].shape) != 1:
                raise ShapeError(
                    f"SliceSampler needs one value of {'.'.join(key)!r} per frame, but its shape is {leaves[key].shape}"
                )

    def attach(self, ring: Ring, memory: np.ndarray) -> None:
        super().attach(ring, memory)
        # For each position, the number of consecutive frames of its trajectory that end with it.
        self._run = memory.view(np.int64)

    def written(self, first: int, count: int) -> None:
        ring = self._ring
        has_before = first > ring.first
        index = np.arange(first - has_before, first + count)
        ids, done = (leaf.reshape(len(index)) for leaf in ring.read(index, TRAJ_IDS, _DONE))
        begins = np.ones(len(index), bool)
        begins[1:] = (ids[1:] != ids[:-1]) | done[:-1]
        places = np.arange(len(index))
        run = places - np.maximum.accumulate(np.where(begins, places, 0)) + 1
        if has_before:
            continues = ~np.logical_or.accumulate(begins[1:])
            run = run[1:]
            run[continues] += self._run[index[0] % ring.capacity] - 1
        self._run[index[has_before:] % ring.capacity] = run

    def rebuild(self) -> None:
        if count := self._ring.end - self._ring.first:
            self.written(self._ring.first, count)

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if size % self.slice_len:
            below, above = size - size % self.slice_len, size + -size % self.slice_len
            raise ValueError(
                f"batch_size={size} is not a multiple of slice_len={self.slice_len} ({size} / {self.slice_len} = "
                f"{size / self.slice_len:.2f}). Use {f'{below} or {above}' if below else above}."
            )
        last = self._ends(size // self.slice_len)
        return last[:, None] + np.arange(1 - self.slice_len, 1), {}

    def _ends(self, count: int) -> np.ndarray:
        """Returns the indices of the last frames of `count` slices. Uses rejection sampling, which is fast unless few
        frames end a slice."""
        first, end = self._ring.first + self.slice_len - 1, self._ring.end
        if first < end:
            ends = np.zeros(0, np.int64)
            for _ in range(_ROUNDS):
                tried = self.random.integers(first, end, 2 * count)
                ends = np.concatenate([ends, tried[self._ends_slice(tried)]])
                if len(ends) >= count:
                    return ends[:count]
            candidates = np.arange(first, end)
            candidates = candidates[self._ends_slice(candidates)]
            if len(candidates):
                return self.random.choice(candidates, count)
        raise ValueError(
            f"no trajectory in the buffer has slice_len={self.slice_len} consecutive frames (frames in all: "
            f"{self._ring.end - self._ring.first}). Write more frames or longer batches, or use shorter slices."
        )

    def _ends_slice(self, index: np.ndarray) -> np.ndarray:
        return self._run[index % self._ring.capacity] >= self.slice_len
