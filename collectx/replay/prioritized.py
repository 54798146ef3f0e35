"""Frames in proportion to how much they surprised: Schaul et al. 2016, "Prioritized Experience Replay"."""

from __future__ import annotations

import numpy as np

from collectx.errors import ConfigError
from collectx.replay.ring import Ring
from collectx.replay.sampler import Sampler
from collectx.replay.tree import SumTree

_HEAD_BYTES = 64


class PrioritizedSampler(Sampler):
    """Frame i with probability `p_i**alpha / sum_k p_k**alpha`, in `size` strata of equal mass, with replacement.

    A new frame has the largest priority that was ever given, 1 before the first. A sample has the key
    "priority_weight", float32: `(N P(i))**-beta`, divided by the largest of the sample (TorchRL divides by the largest
    of the whole buffer, which one frame of a tiny priority decides for all).

    Args:
        alpha: 0 draws uniformly, 1 in proportion to the priority.
        beta: 0 corrects nothing, 1 for all of what drawing in proportion distorts. May be set between samples; that
            of one copy is not that of another.
        eps: added to every priority, so that no frame is lost.
        seed: see `Sampler`.

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, eps: float = 1e-6, seed: int | None = None):
        given = {"alpha": alpha, "beta": beta}
        problems = [f"{name}={value} is negative: use 0 or more." for name, value in given.items() if value < 0]
        if eps <= 0:
            problems.append(f"eps={eps} is not above 0: a frame of priority 0 could never be drawn again.")
        if problems:
            raise ConfigError(problems)
        super().__init__(seed)
        self.alpha, self.beta, self.eps = alpha, beta, eps

    def nbytes(self, capacity: int) -> int:
        return _HEAD_BYTES + SumTree.nbytes(capacity)

    def attach(self, ring: Ring, memory: np.ndarray) -> None:
        super().attach(ring, memory)
        # The largest weight so far; 0 before the first.
        self._largest = memory[:8].view(np.float64)
        self._tree = SumTree(ring.capacity, memory[_HEAD_BYTES:])

    def dropped(self, first: int, count: int) -> None:
        self._fill(first, count, 0.0)

    def written(self, first: int, count: int) -> None:
        self._fill(first, count, self._largest[0] or 1.0)

    def rebuild(self) -> None:
        ring, weights = self._ring, self._tree.weights
        there = np.arange(ring.first, ring.end) % ring.capacity
        kept = weights[there]
        weights[:] = 0.0
        weights[there] = np.where(kept > 0, kept, self._largest[0] or 1.0)
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
            raise ValueError("priorities must be finite and not negative: give absolute errors")
        weight = (priority + self.eps) ** self.alpha
        self._largest[0] = max(self._largest[0], weight.max(initial=0.0))
        self._tree.set(index % self._ring.capacity, weight)

    def _fill(self, first: int, count: int, weight: float) -> None:
        capacity = self._ring.capacity
        start = first % capacity
        stop = min(start + count, capacity)
        self._tree.fill(start, stop, weight)
        if start + count > capacity:
            self._tree.fill(0, start + count - capacity, weight)
