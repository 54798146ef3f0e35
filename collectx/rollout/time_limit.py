"""Truncates trajectories at a number of frames, as an env wrapper (`collectx.env.base.Env`), so that the step loop does
not count.

Used by the rollouts, in the worker's process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectx.env.base import Env, EnvSpec, StepRows
from collectx.rollout.options import RolloutOptions


def with_time_limit(env: Env, options: RolloutOptions) -> Env:
    """`env`, wrapped where `options.max_frames_per_traj` is set.

    Raises:
        ConfigError: the group does not allow it; see `RolloutOptions.env_spec`.
    """
    spec = options.env_spec(env.spec)
    return env if options.max_frames_per_traj is None else TimeLimitEnv(env, spec, options.max_frames_per_traj)


class TimeLimitEnv:
    """Marks the `max_frames`-th frame of a trajectory truncated, whether or not its episode ends there too; the caller
    then restarts that env, like any env whose episode has ended. Its last observation leaf counts the frames of the
    env's trajectory.

    Args:
        env: a group with `can_restart_early`. Closed by this one.
        spec: of this group.
        max_frames: at least 1.
    """

    def __init__(self, env: Env, spec: EnvSpec, max_frames: int):
        self.spec = spec
        self._env = env
        self._max_frames = max_frames
        self._frames = np.zeros(spec.num_envs, np.int64)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._env.reset(seeds, out[:-1])
        self._frames[:] = out[-1][:] = 0

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        *observation, step_count = out.observation
        inner = StepRows(observation, out.reward, out.terminated, out.truncated, out.frame, out.rewards)
        any_ended = self._env.step(action, inner)
        self._frames += 1
        step_count[:, 0] = self._frames
        at_limit = self._frames >= self._max_frames
        np.logical_or(out.truncated, at_limit, out=out.truncated)
        return any_ended or bool(at_limit.any())

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._env.restart(ended, out[:-1])
        self._frames[ended] = 0
        out[-1][ended] = 0

    def close(self) -> None:
        self._env.close()
