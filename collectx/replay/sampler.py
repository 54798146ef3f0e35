"""The base class of samplers, and the uniform sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collectx.batch import Key, Leaf
from collectx.replay.ring import Ring


class Sampler:
    """Chooses the frames of a sample, with a seeded random generator. Base class of all samplers.

    Every process uses its own copy, with its own random stream, which pickling derives. The copies share their state in
    shared memory. Attributes without a leading underscore are settings, which are pickled; `attach` sets the others.

    The buffer holds its lock when it calls these methods, except `nbytes`.

    Attributes:
        random: the generator of this process.

    Args:
        seed: seed of the generator; None: a random one.
    """

    def __init__(self, seed: int | None = None):
        self.random = np.random.default_rng(seed)

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
        """Raises ShapeError if the sampler cannot sample frames with these leaves."""

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
