"""Samplers of replay buffers: uniform, slices of trajectories, and prioritised (Schaul et al. 2016, "Prioritized
Experience Replay").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from collectx.batch import TRAJ_IDS, Key, Leaf
from collectx.errors import ConfigError, DataError
from collectx.random_state import drawn_seed
from collectx.replay.ring import Ring


class Sampler:
    """Chooses the frames of a sample, with a seeded random generator. Base class of all samplers.

    Every process uses its own copy, with its own random stream, which pickling derives. The copies share their state in
    shared memory. Attributes without a leading underscore are settings, which are pickled; `attach` sets the others.

    The buffer holds its lock when it calls these methods, except `nbytes`.

    Attributes:
        random: the generator of this process.

    Args:
        seed: seed of the generator. None: a number that the constructor draws from torch's global generator, so a
            script is repeatable after `torch.manual_seed`.
    """

    def __init__(self, seed: int | None = None):
        self.random = np.random.default_rng(drawn_seed() if seed is None else seed)

    def __getstate__(self) -> dict[str, Any]:
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**settings, "random": self.random.spawn(1)[0]}

    @property
    def first(self) -> int:
        """Index of the oldest frame in the buffer."""
        return self._ring.first

    @property
    def end(self) -> int:
        """Index after that of the newest frame in the buffer."""
        return self._ring.end

    def nbytes(self, capacity: int) -> int:
        """Returns the number of bytes of shared memory that the sampler needs for `capacity` frames."""
        return 0

    def check(self, leaves: Mapping[Key, Leaf]) -> None:
        """Raises DataError if the sampler cannot sample frames with these leaves."""

    def attach(self, ring: Ring, memory: np.ndarray) -> None:
        """Called once in each process, with the ring of frames and the sampler's shared memory, `[nbytes]` uint8,
        initially zero."""
        self._ring = ring

    def dropped(self, first: int, count: int) -> None:
        """Called after frames `first` to `first + count` (exclusive) were removed from the ring."""

    def written(self, first: int, count: int) -> None:
        """Called after frames `first` to `first + count` (exclusive; at most `capacity`) were added."""

    def restore(self, memory: np.ndarray, capacity: int) -> None:
        """Takes over the shared memory of a saved sampler, whose ring had this `capacity`. Called before `rebuild`,
        when the frames are in the ring and this sampler's shared memory is zero."""

    def rebuild(self) -> None:
        """Recomputes the shared memory after a process died while changing it, or the ring was restored."""

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the indices of `size` frames, int64 of any shape, and additional leaves of the sample, by name. The
        ring is not empty. Raises `ValueError` if `size` frames cannot be sampled."""
        raise NotImplementedError

    def update(self, index: np.ndarray, priority: np.ndarray) -> None:
        """Sets the priorities, `[N]`, of frames in the ring with these indices, `[N]`. Raises `ValueError` if the
        sampler does not use priorities."""
        raise ValueError(
            f"{type(self).__name__} does not use priorities. Create the buffer with sampler=PrioritizedSampler()."
        )


class UniformSampler(Sampler):
    """Samples every frame with equal probability, with replacement."""

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self.random.integers(self.first, self.end, size), {}


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
            raise DataError(
                f"SliceSampler needs {' and '.join(map(repr, missing))}, which these frames lack. Fill the "
                "buffer from a collector with track_traj_ids=True."
            )
        for key in (TRAJ_IDS, _DONE):
            if math.prod(leaves[key].shape) != 1:
                raise DataError(
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


_HEAD_BYTES = 64
# Number of children of a node of the sum tree.
_WIDTH = 16
# A search begins at the lowest level with at most so many entries; their cumulative sum costs as much as a level.
_MAX_FIRST = 2**13


class PrioritizedSampler(Sampler):
    """Samples frame i with probability `p_i**alpha / sum_k p_k**alpha`, stratified, with replacement.

    A new frame gets the largest priority so far, initially 1. Samples contain the key "priority_weight", float32: the
    importance weight `(N P(i))**-beta`, divided by the largest one in the sample. (TorchRL divides by the largest one
    in the buffer, which depends on the frame with the lowest priority.)

    Args:
        alpha: exponent of the priorities: 0 samples uniformly, 1 in proportion to the priority.
        beta: exponent of the importance weights: 0 does not correct the sampling bias, 1 corrects it fully. You may set
            it between samples, in each process separately.
        eps: added to every priority, so that no frame has probability 0.
        seed: see `Sampler`.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, eps: float = 1e-6, seed: int | None = None):
        exponents = {"alpha": alpha, "beta": beta}
        problems = [f"{name}={value} must be at least 0." for name, value in exponents.items() if value < 0]
        if eps <= 0:
            problems.append(f"eps={eps} must be greater than 0, or a frame of priority 0 would never be sampled.")
        if problems:
            raise ConfigError(*problems)
        super().__init__(seed)
        self.alpha, self.beta, self.eps = alpha, beta, eps

    def nbytes(self, capacity: int) -> int:
        return _HEAD_BYTES + SumTree.nbytes(capacity)

    def attach(self, ring: Ring, memory: np.ndarray) -> None:
        super().attach(ring, memory)
        # The largest weight set so far; 0 initially.
        self._largest = memory[:8].view(np.float64)
        self._tree = SumTree(ring.capacity, memory[_HEAD_BYTES:])

    def dropped(self, first: int, count: int) -> None:
        # The new frames take these positions, so `written` recomputes the sums.
        for start, stop in self._ranges(first, count):
            self._tree.weights[start:stop] = 0.0

    def written(self, first: int, count: int) -> None:
        for start, stop in self._ranges(first, count):
            self._tree.fill(start, stop, self._largest[0] or 1.0)

    def restore(self, memory: np.ndarray, capacity: int) -> None:
        ring, saved = self._ring, SumTree(capacity, memory[_HEAD_BYTES:])
        index = np.arange(ring.first, ring.end)
        self._largest[0] = memory[:8].view(np.float64)[0]
        self._tree.weights[index % ring.capacity] = saved.weights[index % capacity]

    def rebuild(self) -> None:
        ring, weights = self._ring, self._tree.weights
        positions = np.arange(ring.first, ring.end) % ring.capacity
        kept = weights[positions]
        weights[:] = 0.0
        weights[positions] = np.where(kept > 0, kept, self._largest[0] or 1.0)
        self._tree.rebuild()

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        ring, tree = self._ring, self._tree
        strata = (np.arange(size) + self.random.random(size)) / size
        position = tree.find(strata * tree.total)
        weight = tree.weights[position] ** -self.beta
        weight /= weight.max()
        index = ring.first + (position - ring.first) % ring.capacity
        return index, {"priority_weight": weight.astype(np.float32)}

    def update(self, index: np.ndarray, priority: np.ndarray) -> None:
        if not (np.isfinite(priority) & (priority >= 0)).all():
            raise ValueError("priorities must be finite and not negative. Pass absolute errors.")
        weight = (priority + self.eps) ** self.alpha
        self._largest[0] = max(self._largest[0], weight.max(initial=0.0))
        self._tree.set(index % self._ring.capacity, weight)

    def _ranges(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges of positions of frames `first` to `first + count`, exclusive."""
        capacity = self._ring.capacity
        start = first % capacity
        yield start, min(start + count, capacity)
        if start + count > capacity:
            yield 0, start + count - capacity


class SumTree:
    """A tree over `size` non-negative float64 weights, for sampling in proportion to them. A node has 16 children.

        top       | sum of block 0 | sum of block 1 | ...     16 entries
        ...
        weights   | 0  1  2 ... 15 | 16 ... 31      | ...

    With a million weights, the tree has five levels; a binary tree would have twenty. A search begins by bisection at a
    level of some thousand entries. Each level below it takes a few NumPy calls for all searches together. A node is
    recomputed from its children, so rounding errors do not accumulate.

    Args:
        memory: `[SumTree.nbytes(size)]` uint8. The caller owns it, and has set it to zero.

    Attributes:
        weights: `[size]` float64; call `rebuild` after you have written to it.
    """

    def __init__(self, size: int, memory: np.ndarray):
        self._levels = []
        numbers = memory.view(np.float64)
        for length in _lengths(size):
            self._levels.append(numbers[:length].reshape(-1, _WIDTH))
            numbers = numbers[length:]
        self.weights = self._levels[0].reshape(-1)[:size]
        self._first = next(i for i, entries in enumerate(self._levels) if entries.size <= _MAX_FIRST)

    @staticmethod
    def nbytes(size: int) -> int:
        """Returns the number of bytes for `size` weights."""
        return 8 * sum(_lengths(size))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum())

    def set(self, index: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights at `index`, both `[N]`; for duplicate indices the last one counts."""
        self.weights[index] = weights
        for lower, upper in zip(self._levels, self._levels[1:], strict=False):
            index = index // _WIDTH
            if len(lower) > len(index):
                upper.reshape(-1)[index] = lower[index].sum(1)
            else:
                upper.reshape(-1)[: len(lower)] = lower.sum(1)

    def fill(self, start: int, stop: int, weight: float) -> None:
        """Sets all weights from `start` to `stop`, exclusive."""
        self.weights[start:stop] = weight
        self._sum(start, stop)

    def rebuild(self) -> None:
        """Recomputes all sums, after `weights` was written."""
        self._sum(0, len(self.weights))

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Returns, for each `mass`, `[N]` from 0 to below `total`, the index of the weight whose interval of the
        cumulative sum contains it. Never returns the index of a weight of 0. `total` must not be 0."""
        level = self._first
        ends = self._levels[level].reshape(-1).cumsum()
        block = ends.searchsorted(np.minimum(mass, np.nextafter(ends[-1], 0)), "right")
        mass = mass - np.where(block > 0, ends[block - 1], 0)
        rows = np.arange(len(mass))
        for entries in reversed(self._levels[:level]):
            ends = entries.take(block, axis=0).cumsum(1)
            # The sum of a block may differ in its last bit from the one in the level above.
            mass = np.minimum(mass, np.nextafter(ends[:, -1], 0))
            within = (ends > mass[:, None]).argmax(1)
            mass = mass - np.where(within > 0, ends[rows, within - 1], 0)
            block = block * _WIDTH + within
        return block

    def _sum(self, start: int, stop: int) -> None:
        for lower, upper in zip(self._levels, self._levels[1:], strict=False):
            start, stop = start // _WIDTH, -(-stop // _WIDTH)
            upper.reshape(-1)[start:stop] = lower[start:stop].sum(1)


def _lengths(size: int) -> list[int]:
    """Returns the number of entries of each level, padded to multiples of the block size."""
    lengths = [-(-size // _WIDTH) * _WIDTH]
    while lengths[-1] > _WIDTH:
        lengths.append(-(-lengths[-1] // _WIDTH // _WIDTH) * _WIDTH)
    return lengths
