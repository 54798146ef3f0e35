"""A sum tree with 16 branches per node, for sampling in proportion to weights.

    top       | sum of block 0 | sum of block 1 | ...     16 entries
    ...
    weights   | 0  1  2 ... 15 | 16 ... 31      | ...

A million weights have five levels. Each level of a search takes a few numpy calls for all searches together; a binary
tree would have twenty levels. A node is recomputed from its children, so rounding errors do not accumulate.
"""

from __future__ import annotations

import numpy as np

_WIDTH = 16


class SumTree:
    """`size` non-negative float64 weights in memory that the caller owns and has set to zero.

    Args:
        memory: `[SumTree.nbytes(size)]` uint8.

    Attributes:
        weights: `[size]`; after writing to it, call `rebuild`.
    """

    def __init__(self, size: int, memory: np.ndarray):
        self._levels = []
        numbers = memory.view(np.float64)
        for length in _lengths(size):
            self._levels.append(numbers[:length].reshape(-1, _WIDTH))
            numbers = numbers[length:]
        self.weights = self._levels[0].reshape(-1)[:size]

    @staticmethod
    def nbytes(size: int) -> int:
        """Size of the memory for `size` weights."""
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
            upper.reshape(-1)[index] = lower[index].sum(1)

    def fill(self, start: int, stop: int, weight: float) -> None:
        """Sets all weights from `start` to `stop`, exclusive."""
        self.weights[start:stop] = weight
        self._sum(start, stop)

    def rebuild(self) -> None:
        """Recomputes all sums, after `weights` was written."""
        self._sum(0, len(self.weights))

    def find(self, mass: np.ndarray) -> np.ndarray:
        """Inverts the cumulative sum: for each `mass`, `[N]` in [0, `total`), returns the index of the weight whose
        interval contains it. Never returns the index of a weight of 0. `total` must not be 0."""
        block = np.zeros(len(mass), np.int64)
        rows = np.arange(len(mass))
        for level in reversed(self._levels):
            ends = level.take(block, axis=0).cumsum(1)
            # The sum of a block and that in the level above may differ in the last bit.
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
    """Number of entries of each level, padded to multiples of the block size."""
    lengths = [-(-size // _WIDTH) * _WIDTH]
    while lengths[-1] > _WIDTH:
        lengths.append(-(-lengths[-1] // _WIDTH // _WIDTH) * _WIDTH)
    return lengths
