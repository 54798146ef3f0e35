"""What a sampler is, and the simplest one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collectx.batch import Key, Leaf
from collectx.replay.ring import Ring


class Sampler:
    """Chooses frames of a ring, with numbers from a seeded generator.

    Every process has a copy of its own, which draws other numbers: a pickled one takes a stream that is split off. What
    the copies have to agree on lies in memory that they share. Attributes without an underscore are settings and travel
    with the copy, the others come with `attach`.

    All but `nbytes` is called by the buffer, with its lock held.
    """

    def __init__(self, seed: int | None = None):
        """
        Args:
            seed: None draws other numbers in every run.
        """
        self.random = np.random.default_rng(seed)

    def __getstate__(self) -> dict[str, Any]:
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**settings, "random": self.random.spawn(1)[0]}

    def nbytes(self, capacity: int) -> int:
        """Shared memory that it needs for a ring of so many frames."""
        return 0

    def check(self, leaves: Mapping[Key, Leaf]) -> None:
        """
        Raises:
            ShapeError: it cannot choose among frames of these leaves.
        """

    def attach(self, ring: Ring, memory: np.ndarray) -> None:
        """Called once in each process, with `[nbytes]` uint8 that are zero in the first of them."""
        self._ring = ring

    def dropped(self, first: int, count: int) -> None:
        """Frames `first` to `first + count`, the latter not included, are no longer in the ring."""

    def written(self, first: int, count: int) -> None:
        """Frames `first` to `first + count`, the latter not included and at most the ring's capacity, are new in it."""

    def rebuild(self) -> None:
        """A process died in the midst of a change, or the ring has other frames: makes the shared memory right."""

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Numbers of `size` frames of a ring that has some, int64 of any shape, and what else a sample says of each
        frame, by key.

        Raises:
            ValueError: so many cannot be drawn.
        """
        raise NotImplementedError

    def update(self, index: np.ndarray, priority: np.ndarray) -> None:
        """New priorities `[N]` of the frames `index` `[N]`, all of which are in the ring."""
        raise ValueError(f"{type(self).__name__} has no priorities: give the buffer a PrioritizedSampler")


class UniformSampler(Sampler):
    """Every frame with equal probability, with replacement."""

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self.random.integers(self._ring.first, self._ring.end, size), {}
