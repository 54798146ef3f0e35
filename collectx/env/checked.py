"""A Gymnasium wrapper that checks observations in the process of an async vector env that steps the env.

The vector env converts observations to the dtype of their space when it writes them to its shared memory, so that the
adapter in the worker cannot see the values before. Used by `collectx.env.gym_vector`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import gymnasium

from collectx.env.spaces import SpaceLeaves, check, exclude_parts, numpy_dtype
from collectx.errors import CollectxError


class CheckedEnv(gymnasium.Wrapper):
    """Raises ShapeError for an observation that does not have the shape of its space, or whose values the space's dtype
    cannot represent.

    Args:
        exclude_keys: parts of the observation that are not checked.
    """

    def __init__(self, env: gymnasium.Env, exclude_keys: Sequence[str] = ()):
        super().__init__(env)
        index = multiprocessing.current_process().name.rpartition("-")[2]  # of an AsyncVectorEnv's process
        self._index = int(index) if index.isdigit() else None
        try:
            self._observation: SpaceLeaves | None = SpaceLeaves(
                exclude_parts(env.observation_space, exclude_keys), ("observation",)
            )
        except CollectxError:
            self._observation = None  # the worker raises it, with the name of the option
            return
        self._leaves = [(leaf, numpy_dtype(leaf)) for leaf in self._observation.leaves]

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        self._check(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        self._check(observation)
        return observation, *rest

    def _check(self, observation: Any) -> None:
        if self._observation is not None:
            for (leaf, dtype), value in zip(self._leaves, self._observation.flatten(observation), strict=True):
                check(leaf, value, dtype, self._index)
