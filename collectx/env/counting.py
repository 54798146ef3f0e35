"""Kind `counting`: an env whose observation says which frame it is, so that a wrong frame is an equality failure.

For tests of everything above the env: called by the rollout, in the worker's process; the checks at the end run where
the batches arrive. Must not know slots or transports.

    observation = (global env index, episode, step, filler ...)      int64
    reward = step (of the observation that follows), action ignored, Discrete(2)

The filler is a function of the first three, so a frame put together from two shows. Env i's episodes last
`episode_length + i % 3` steps and terminate, so that envs do not end in lockstep.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.config import CountingEnvConfig
from collectx.env.base import EnvSpec, StepRows
from collectx.errors import ConfigError

# Episodes of an env whose worker was started again are numbered from here on, or a multiple of it.
LIFE = 2**32
_MIX = np.array([1_000_003, 10_007, 101], np.int64)


class CountingEnv:
    """`cfg.num_envs` counters with the global indices `first_index`, `first_index + 1`, ...

    `reset` goes back to the first episode whatever the seeds: 0, or `life * 2**32`. `cfg.step_s` is how long one call
    of `step` keeps the processor busy, in seconds, for the whole group.
    """

    def __init__(self, cfg: CountingEnvConfig, first_index: int = 0, life: int = 0):
        problems = []
        if cfg.observation_size < 3:
            problems.append(f"env.observation_size={cfg.observation_size} is below 3: index, episode and step need 3")
        if cfg.episode_length < 1:
            problems.append(f"env.episode_length={cfg.episode_length} is below 1")
        if problems:
            raise ConfigError(problems)
        size = cfg.observation_size
        space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (size,), np.int64)
        leaf = Leaf(("observation",), (size,), torch.int64)
        action = Leaf(("action",), (), torch.int64)
        self.spec = EnvSpec(cfg.num_envs, (leaf,), (action,), space, spaces.Discrete(2))
        self._step_s = cfg.step_s
        self._index = first_index + np.arange(cfg.num_envs)
        self._length = episode_length(self._index, cfg.episode_length)
        self._first_episode = life * LIFE
        self._episode = np.full(cfg.num_envs, self._first_episode, np.int64)
        self._step = np.zeros(cfg.num_envs, np.int64)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        self._episode[:] = self._first_episode
        self._step[:] = 0
        out[0][:] = self._observation()

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        if self._step_s:
            _keep_busy(self._step_s)
        self._step += 1
        out.observation[0][:] = self._observation()
        out.reward[:] = self._step
        out.terminated[:] = self._step >= self._length
        out.truncated[:] = False
        return bool(out.terminated.any())

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self._episode[ended] += 1
        self._step[ended] = 0
        out[0][ended] = self._observation()[ended]

    def close(self) -> None:
        pass

    def _observation(self) -> np.ndarray:
        return frame(self._index, self._episode, self._step, self.spec.observation[0].shape[0])


def frame(index: np.ndarray, episode: np.ndarray, step: np.ndarray, size: int) -> np.ndarray:
    """The observations `[N, size]` of `[N]` indices, episodes and steps."""
    head = np.stack([index, episode, step], axis=-1).astype(np.int64)
    filler = (head @ _MIX)[:, None] + 7 * np.arange(size - 3, dtype=np.int64)
    return np.concatenate([head, filler], axis=-1)


def episode_length(index: np.ndarray, shortest: int) -> np.ndarray:
    """Steps in each episode of the envs with these global indices, where `env.episode_length` is `shortest`."""
    return shortest + index % 3


class StreamChecker:
    """Verifies that batches of counting envs hold every frame of every env once, in order and whole.

    Batches may come from any number of workers in any order, as long as those of one env come in order; their leading
    dimensions may have any shape, with time last. An episode may end early (a caller that cuts trajectories short),
    as long as the last frame is marked done.

        checker = StreamChecker()
        for batch in collector:
            checker.take(batch)
        assert checker.frames == total_frames

    Args:
        from_start: whether the first frame of every env must be step 0 of episode 0.
        restarts: whether workers may have been started again: then an env's frames may break off at any place, and go
            on with the beginning of a later life.

    Attributes:
        frames: number of frames taken.
    """

    def __init__(self, from_start: bool = True, restarts: bool = False):
        self.frames = 0
        self._restarts = restarts
        self._batches = 0
        self._from_start = from_start
        # For each env: episode and step of the frame that must come next, and the trajectory it must belong to.
        self._next: dict[int, tuple[int, int, int | None]] = {}
        self._trajectories: dict[int, tuple[int, int]] = {}

    def take(self, batch: Any) -> None:
        """Checks a batch: a TensorDict, or a mapping by the same keys ("observation", ("next", "done"), ...)."""
        self.take_arrays(
            batch["observation"], batch["next", "observation"], batch["next", "done"], batch["collector", "traj_ids"]
        )

    def take_arrays(self, observation: Any, next_observation: Any, done: Any, traj_ids: Any) -> None:
        """Checks the arrays of one batch, `[*lead, K]`, `[*lead, K]`, `[*lead]` or `[*lead, 1]`, `[*lead]`.

        Raises:
            AssertionError: names the first lost, repeated, reordered or torn frame.
        """
        traj_ids = np.asarray(traj_ids).reshape(-1)
        num_frames = len(traj_ids)
        observation = np.asarray(observation).reshape(num_frames, -1)
        next_observation = np.asarray(next_observation).reshape(num_frames, -1)
        done = np.asarray(done).reshape(num_frames)
        self._refuse_torn(observation, "observation")
        self._refuse_torn(next_observation, "next.observation")
        for f in range(num_frames):
            self._check_frame(f, observation, next_observation, bool(done[f]), int(traj_ids[f]))
        self.frames += num_frames
        self._batches += 1

    def _refuse_torn(self, observation: np.ndarray, name: str) -> None:
        right = frame(observation[:, 0], observation[:, 1], observation[:, 2], observation.shape[1])
        torn = np.flatnonzero((observation != right).any(axis=1))
        if len(torn):
            f = int(torn[0])
            raise AssertionError(
                f"{self._where(f, observation)}: torn {name}: {observation[f].tolist()}, expected {right[f].tolist()}"
            )

    def _check_frame(self, f: int, observation: np.ndarray, after: np.ndarray, done: bool, trajectory: int) -> None:
        index, episode, step = observation[f, :3].tolist()
        where = self._where(f, observation)
        expected = self._next.get(index)
        if expected is None:
            expected = (0, 0, None) if self._from_start else (episode, step, None)
        life, first = divmod(episode, LIFE)
        if self._restarts and (first, step) == (0, 0) and life > expected[0] // LIFE:
            expected = (episode, step, None)
        want_episode, want_step, want_trajectory = expected
        if (episode, step) != (want_episode, want_step):
            fault = "lost"
            if (episode, step) < (want_episode, want_step):
                fault = "repeated"
            elif (observation[f:, :3] == (index, want_episode, want_step)).all(axis=1).any():
                fault = "reordered"
            raise AssertionError(
                f"{where}: {fault}: expected episode {want_episode}, step {want_step}, "
                f"got episode {episode}, step {step}"
            )
        if want_trajectory not in (None, trajectory):
            raise AssertionError(f"{where}: traj_ids changed from {want_trajectory} to {trajectory} within an episode")
        if self._trajectories.setdefault(trajectory, (index, episode)) != (index, episode):
            raise AssertionError(f"{where}: traj_ids {trajectory} was already used by {self._trajectories[trajectory]}")
        if after[f, :3].tolist() != [index, episode, step + 1]:
            raise AssertionError(
                f"{where}: next.observation is env {after[f, 0]}, episode {after[f, 1]}, step {after[f, 2]}, "
                f"expected env {index}, episode {episode}, step {step + 1}"
            )
        self._next[index] = (episode + 1, 0, None) if done else (episode, step + 1, trajectory)

    def _where(self, f: int, observation: np.ndarray) -> str:
        return f"env {observation[f, 0]}, frame {f} of batch {self._batches}"


def check_stream(batches: Iterable[Any], from_start: bool = True) -> int:
    """Checks all of `batches` with one `StreamChecker`; returns the number of frames."""
    checker = StreamChecker(from_start)
    for batch in batches:
        checker.take(batch)
    return checker.frames


def _keep_busy(seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        pass
