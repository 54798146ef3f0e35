"""The base class of samplers, and the uniform sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collectx.batch import Key, Leaf
from collectx.replay.ring import Ring


class Sampler:
    """Chooses frames of a ring with a seeded random generator.

    Every process uses a copy with a separate random stream: pickling spawns a new one. Copies share state in shared
    memory. Attributes without a leading underscore are settings and are pickled; `attach` sets the others.

    The buffer calls all methods except `nbytes` with its lock held.

    Args:
        seed: seed of the generator; None: another one in every run.
    """

    def __init__(self, seed: int | None = None):
        self.random = np.random.default_rng(seed)

    def __getstate__(self) -> dict[str, Any]:
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**settings, "random": self.random.spawn(1)[0]}

    def nbytes(self, capacity: int) -> int:
        """Size of the sampler's shared memory for a ring of `capacity` frames."""
        return 0

    def check(self, leaves: Mapping[Key, Leaf]) -> None:
        """Raises ShapeError if the sampler cannot sample frames with these leaves."""

    def attach(self, ring: Ring, memory: np.ndarray) -> None:
        """Called once in each process with the shared memory, `[nbytes]` uint8, initially zero."""
        self._ring = ring

    def dropped(self, first: int, count: int) -> None:
        """Called after frames `first` to `first + count` (exclusive) were removed from the ring."""

    def written(self, first: int, count: int) -> None:
        """Called after frames `first` to `first + count` (exclusive; at most `capacity`) were added."""

    def restore(self, memory: np.ndarray, capacity: int) -> None:
        """Takes the shared memory of a sampler whose ring has this `capacity`, before `rebuild`. The frames are in the
        ring, and this sampler's shared memory is zero."""

    def rebuild(self) -> None:
        """Recomputes the shared memory after a process died in a change, or the ring was restored."""

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the indices of `size` frames, int64 of any shape, and additional leaves of the sample. The ring has
        frames. Raises ValueError if `size` frames cannot be sampled."""
        raise NotImplementedError

    def update(self, index: np.ndarray, priority: np.ndarray) -> None:
        """Sets the priorities `[N]` of the frames `index` `[N]`, which are in the ring."""
        raise ValueError(
            f"{type(self).__name__} does not use priorities. Construct the buffer with a PrioritizedSampler"
        )


class UniformSampler(Sampler):
    """Samples every frame with equal probability, with replacement."""

    def draw(self, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self.random.integers(self._ring.first, self._ring.end, size), {}
