"""An env that observes which GPU its process sees."""

from __future__ import annotations

import os

import gymnasium
import numpy as np

NONE, ALL = -1.0, -2.0


class Seeing(gymnasium.Env):
    """Observes the number of the GPU that its process sees."""

    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def _look(self):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", ALL)
        return np.array([NONE if seen == "" else float(seen)], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {}


def seen_by(collector) -> list[list[float]]:
    with collector:
        return [part.unique().tolist() for part in next(collector)["observation"]]
