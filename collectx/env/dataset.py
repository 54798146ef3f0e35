"""Kind `dataset`: replays the episodes of a recorded data set (`trainer=record`), whatever the actions are.

Observations, kept infos, rewards and ends are as recorded, so you can test a trainer or a pipeline with the data of a
slow env, at full speed and without its packages. A policy that learns from it does not see the effect of its actions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectx import data
from collectx.batch import as_array
from collectx.config.schema.env import DatasetEnvConfig
from collectx.env.base import Env, EnvSpec, StepArrays
from collectx.env.env_indices import EnvNumbers
from collectx.errors import ConfigError


class DatasetEnv(Env):
    """`cfg.num_envs` envs with the global indices `first_index`, `first_index + 1`, ... Env i begins with episode i,
    modulo the number of episodes, and continues with the following ones. `reset` returns to its first episode, whatever
    the seeds are. Raises `ConfigError` if the data set does not exist, `collectx.data.load` cannot read it, or its
    frames do not have one reward each."""

    def __init__(self, cfg: DatasetEnvConfig, first_index: int, incarnation: int, numbers: EnvNumbers):
        self._dir = cfg.dir
        try:
            self._load()
        except ConfigError as error:
            raise ConfigError(*(f"env.dir={problem}" for problem in error.problems)) from error
        run = self._run
        if not run.has_usual_reward:
            raise ConfigError(
                f"env.dir={cfg.dir} cannot be used: its frames must have one float32 reward each. Choose another "
                "data set."
            )
        spaces = (run.observation_space, run.action_space)
        self.spec = EnvSpec(cfg.num_envs, run.observation, run.action, *spaces, inputs=run.inputs)
        self._first = (first_index + np.arange(cfg.num_envs)) % len(self._starts)
        self._episode = self._first.copy()
        self._frame = self._starts[self._episode]

    def __getstate__(self) -> dict:
        """Omits the frames, which the process that restores the env reads from the data set."""
        frames = ("_run", "_starts", "_last", "_now", "_next", "_rewards", "_terminated", "_truncated")
        return {name: value for name, value in vars(self).items() if name not in frames}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._load()

    def _load(self) -> None:
        _, (self._run, *_) = data.readable_runs(self._dir)
        frames = data.load(self._dir)
        episode = as_array(frames["collector", "episode"])
        self._starts = np.flatnonzero(np.diff(episode, prepend=-1))
        self._last = np.append(self._starts[1:], len(episode)) - 1
        self._now = [as_array(frames[leaf.key]) for leaf in self._run.observation]
        self._next = [as_array(frames["next", *leaf.key]) for leaf in self._run.observation]
        self._rewards, self._terminated, self._truncated = (
            as_array(frames["next", name]).reshape(-1) for name in ("reward", "terminated", "truncated")
        )
        # An episode that was recorded before its end ends there.
        self._truncated[self._last] |= ~self._terminated[self._last]

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._episode = self._first.copy()
        self._begin(slice(None), out)

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._episode[ended] = (self._episode[ended] + 1) % len(self._starts)
        self._begin(ended, out)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        frame = self._frame
        for array, values in zip(out.observation, self._next, strict=True):
            array[...] = values[frame]
        out.reward[:] = self._rewards[frame]
        out.terminated[:] = self._terminated[frame]
        out.truncated[:] = self._truncated[frame]
        self._frame = frame + 1
        return bool(out.terminated.any() or out.truncated.any())

    def _begin(self, envs: np.ndarray | slice, out: Sequence[np.ndarray]) -> None:
        """Moves these envs to the first frame of their episodes."""
        self._frame[envs] = self._starts[self._episode[envs]]
        for array, values in zip(out, self._now, strict=True):
            array[envs] = values[self._frame[envs]]
