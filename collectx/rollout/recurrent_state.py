"""Carries a recurrent policy's state from frame to frame: an env around an env (`collectx.env.base.Env`), so that the
step loop knows nothing of it. The policy writes the state after a frame straight into `next`; this env leaves it there.

Used by the rollouts, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectx.env.base import Env, StepRows
from collectx.env.spaces import numpy_dtype
from collectx.policy.recurrent import Carried, seen_with


def with_state(env: Env, carried: Sequence[Carried]) -> Env:
    """The group that observes what the policy carries as well: `env` itself where that is nothing."""
    return CarryEnv(env, carried) if carried else env


class CarryEnv:
    """A state begins anew in every env whose episode does.

    Args:
        env: closed by this one.
        carried: see `collectx.policy.recurrent`.
    """

    def __init__(self, env: Env, carried: Sequence[Carried]):
        self.spec = seen_with(env.spec, carried)
        self._env = env
        theirs = env.spec.observation
        self._num_theirs = len(theirs)
        mine = [each for each in carried if each.first is not None]
        self._firsts = [each.first.numpy() for each in mine if each.first is not None]
        self._unwritten = [self._num_theirs + i for i, each in enumerate(mine) if not each.written]
        # Where the env writes what is the policy's to write.
        size = env.spec.num_envs
        self._aside = {
            theirs.index(each.leaf): np.zeros((size, *each.leaf.shape), numpy_dtype(each.leaf))
            for each in carried
            if each.first is None
        }

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._env.reset(seeds, out[: self._num_theirs])
        self._begin(slice(None), out)

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        theirs = [self._aside.get(i, array) for i, array in enumerate(out.observation[: self._num_theirs])]
        inner = StepRows(theirs, out.reward, out.terminated, out.truncated, out.frame, out.rewards)
        any_ended = self._env.step(action, inner)
        for i in self._unwritten:
            out.observation[i][...] = 0
        if self.spec.ragged:
            # Where a reset took the step, these are first observations.
            begun = ~out.frame
            self._begin(begun, out.observation)
            for i, array in self._aside.items():
                out.observation[i][begun] = array[begun]
        return any_ended

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._env.restart(ended, out[: self._num_theirs])
        self._begin(ended, out)

    def close(self) -> None:
        self._env.close()

    def _begin(self, envs: np.ndarray | slice, out: Sequence[np.ndarray]) -> None:
        for array, first in zip(out[self._num_theirs :], self._firsts, strict=True):
            array[envs] = first
