"""Steps a group of envs as a rollout does, and keeps the frames of each env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collectx.batch import Leaf
from collectx.env.base import Env, StepArrays
from collectx.env.spaces import numpy_dtype


class Frame(NamedTuple):
    """One env's step; compare two with `numpy.testing.assert_equal`."""

    before: list[np.ndarray]
    action: list[np.ndarray]
    reward: float
    terminated: bool
    truncated: bool
    after: list[np.ndarray]

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def memory(leaves: Sequence[Leaf], num_envs: int) -> list[np.ndarray]:
    """One array `[num_envs, *shape]` per leaf, not contiguous, as a slot's rows are."""
    return [np.zeros((num_envs, 2, *leaf.shape), numpy_dtype(leaf))[:, 1] for leaf in leaves]


class Stepper:
    """Begin with `reset`, then `step`.

    Attributes:
        observation: with which the next step begins.
        out: what the last step wrote.
        frames: of each env, in order.
    """

    def __init__(self, env: Env):
        self.env, self.spec = env, env.spec
        self.frames: list[list[Frame]] = [[] for _ in range(env.spec.num_envs)]

    def reset(self, seeds: Sequence[int] | None = None) -> Stepper:
        """Resets all envs, by default with the seeds 0, 1, ..."""
        self.observation = memory(self.spec.observation, self.spec.num_envs)
        self.env.reset(range(self.spec.num_envs) if seeds is None else seeds, self.observation)
        return self

    def step(self, *action: np.ndarray, cut: np.ndarray | bool = False) -> StepArrays:
        """One step, and a reset of the envs that ended and of those of `cut`; by default the actions are zeros."""
        size, ragged = self.spec.num_envs, self.spec.ragged
        action = action or tuple(memory(self.spec.action, size))
        flags = np.zeros((size, 2, 3), bool) | [False, False, True]
        out = self.out = StepArrays(
            memory(self.spec.observation, size), np.full(size, np.nan, np.float32), *flags[:, 1].T
        )
        any_ended = self.env.step(action, out)
        ended = out.terminated | out.truncated
        assert any_ended is bool(ended.any())
        assert ragged or out.frame.all()
        for e in np.flatnonzero(out.frame):
            rows = [[array[e].copy() for array in arrays] for arrays in (self.observation, action, out.observation)]
            flags_of_env = bool(out.terminated[e]), bool(out.truncated[e])
            self.frames[e].append(Frame(rows[0], rows[1], float(out.reward[e]), *flags_of_env, rows[2]))
        self.observation = [array.copy() for array in out.observation]
        chosen = ended | cut
        if chosen.any() and not ragged:
            self.env.reset_some(chosen, self.observation)
            for array, left in zip(self.observation, out.observation, strict=True):
                np.testing.assert_array_equal(array[~chosen], left[~chosen])
        return out
