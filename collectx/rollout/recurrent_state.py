"""Passes a recurrent policy's state from frame to frame, as an env wrapper (`collectx.env.base.Env`), so that the step
loop does not handle it. The policy writes the state after a frame straight into `next`; the wrapper leaves it there.

Used by the rollouts, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectx.env.base import Env, StepRows
from collectx.env.spaces import numpy_dtype
from collectx.policy.recurrent import StateSpec, spec_with_states


def with_recurrent_state(env: Env, states: Sequence[StateSpec]) -> Env:
    """`env`, wrapped so that it also observes the policy's states; `env` itself without states."""
    return RecurrentStateEnv(env, states) if states else env


class RecurrentStateEnv:
    """Resets the state of every env whose episode begins.

    Args:
        env: closed by this one.
        states: see `collectx.policy.recurrent`.
    """

    def __init__(self, env: Env, states: Sequence[StateSpec]):
        self.spec = spec_with_states(env.spec, states)
        self._env = env
        observed = env.spec.observation
        self._num_observed = len(observed)
        added = [state for state in states if state.initial is not None]
        self._initial = [state.initial.numpy() for state in added if state.initial is not None]
        self._unwritten = [self._num_observed + i for i, state in enumerate(added) if not state.is_written]
        # The env writes the states that it observes here, as the policy writes them into the batch.
        size = env.spec.num_envs
        self._unused = {
            observed.index(state.leaf): np.zeros((size, *state.leaf.shape), numpy_dtype(state.leaf))
            for state in states
            if state.initial is None
        }

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._env.reset(seeds, out[: self._num_observed])
        self._write_initial(slice(None), out)

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        observation = [self._unused.get(i, array) for i, array in enumerate(out.observation[: self._num_observed])]
        inner = StepRows(observation, out.reward, out.terminated, out.truncated, out.frame, out.rewards)
        any_ended = self._env.step(action, inner)
        for i in self._unwritten:
            out.observation[i][...] = 0
        if self.spec.ragged:
            # Where the step was a reset, these are first observations.
            was_reset = ~out.frame
            self._write_initial(was_reset, out.observation)
            for i, array in self._unused.items():
                out.observation[i][was_reset] = array[was_reset]
        return any_ended

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._env.restart(ended, out[: self._num_observed])
        self._write_initial(ended, out)

    def close(self) -> None:
        self._env.close()

    def _write_initial(self, envs: np.ndarray | slice, out: Sequence[np.ndarray]) -> None:
        for array, initial in zip(out[self._num_observed :], self._initial, strict=True):
            array[envs] = initial
