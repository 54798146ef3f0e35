"""Resets a group of envs before its rollout exists, as an env wrapper (`collectx.env.base.Env`).

A user's policy is called once, with first observations, to learn which keys it writes (`collectx.policy.user_actor`).
These are the first observations of the rollout's first episodes, so that no env is reset a second time. Used by the
worker, in its process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from collectx.env.base import Env, first_observations


class FirstResetEnv:
    """A group that is reset with `seeds` when it is made. The first call of `reset` returns those observations and
    resets nothing.

    Args:
        env: closed by this one.
        seeds: one per env; those of the rollout.
    """

    def __init__(self, env: Env, seeds: Sequence[int]):
        first = first_observations(env, seeds)
        self.spec = dataclasses.replace(env.spec, first=first)
        self._env = env
        self._first: list[np.ndarray] | None = [value.numpy() for value in first.values()]
        # The env's own methods, so that the wrapper adds no call to a step.
        self.step, self.restart, self.close = env.step, env.restart, env.close

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        first, self._first = self._first, None
        if first is None:
            self._env.reset(seeds, out)
            return
        for array, value in zip(out, first, strict=True):
            array[...] = value
