"""Kind `gym`: a group of Gymnasium envs, stepped one after the other in a plain Python loop.

Called by the rollout, in the worker's process. The constructor resolves everything that does not change between steps,
so that a step of the group calls each env's `step` and little else. Does not depend on slots, trajectories or policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from collectx.batch import REWARD, Leaf
from collectx.config.schema.env import GymEnvConfig
from collectx.env.base import EnvSpec, StepRows, closed_on_error
from collectx.env.gym_factory import env_factory, explain_missing_package
from collectx.env.infos import PROBED_STEPS, InfoKeys
from collectx.env.spaces import SpaceLeaves, check, checked_rows, exclude_parts, write_row

# The reward of one env, without the batch's last dimension.
_REWARD = Leaf(REWARD.key, (), REWARD.dtype)


def build(cfg: GymEnvConfig, first_index: int, life: int) -> GymEnv:
    """See `collectx.env.build`."""
    with explain_missing_package(cfg):
        return GymEnv(cfg)


class GymEnv:
    """`cfg.num_envs` Gymnasium envs, each with its own seed.

    Discrete actions are passed as Python integers, all others as rows of a copy, so that an env may keep or change its
    action. Actions are not clipped.

    Raises:
        ConfigError: neither or both of `id` and `entry_point`, or a name that cannot be imported.
        SpaceError: a space that cannot be stored as tensors, or an info entry that is missing or not numeric.
    """

    def __init__(self, cfg: GymEnvConfig, make: Callable[[], gymnasium.Env] | None = None):
        """
        Args:
            make: makes one env; replaces `id` and `entry_point` of `cfg`.
        """
        make = make or env_factory(cfg)
        self._envs: list[gymnasium.Env] = []
        with closed_on_error(self):
            for _ in range(cfg.num_envs):
                self._envs.append(make())
            first = self._envs[0]
            self._observation = SpaceLeaves(exclude_parts(first.observation_space, cfg.exclude_keys), ("observation",))
            action = SpaceLeaves(first.action_space, ("action",))
            self._infos = InfoKeys(cfg.info_keys, _probe_infos(first)) if cfg.info_keys else None
        infos = self._infos.leaves if self._infos else ()
        self._leaves: tuple[Leaf, ...] = (*self._observation.leaves, *infos)
        self.spec = EnvSpec(cfg.num_envs, self._leaves, action.leaves, self._observation.space, first.action_space)
        self._split: Callable[[Sequence[np.ndarray]], list[Any]] = action.element_splitter()
        self._steps = [env.step for env in self._envs]
        self._indices = range(cfg.num_envs)
        self._plain = self._observation.single and self._infos is None

    @property
    def user_envs(self) -> list[Any]:
        """The user's env objects."""
        return list(self._envs)

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        for e in self._indices:
            self._restart_one(e, None if seeds is None else int(seeds[e]), out)

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        for e in np.flatnonzero(ended).tolist():
            self._restart_one(e, None, out)

    def step(self, action: Sequence[np.ndarray], out: StepRows) -> bool:
        actions = self._split(action)
        rewards: list[Any] = []
        add_reward = rewards.append
        terminated, truncated = out.terminated, out.truncated
        any_ended = False
        plain = self._plain
        values: list[Any] = []
        add_values = values.append
        try:
            for step, one in zip(self._steps, actions, strict=True):
                observation, reward, is_terminated, is_truncated, info = step(one)
                add_values(observation if plain else self._flatten(observation, info))
                add_reward(reward)
                if is_terminated or is_truncated:
                    e = len(rewards) - 1
                    terminated[e] = is_terminated
                    truncated[e] = is_truncated
                    any_ended = True
        except Exception as error:
            error.add_note(f"in env {len(rewards)} of this group of {self.spec.num_envs}, while stepping")
            raise
        if len(values) == 1:
            # For one env, `write_row` costs half of `checked_rows`.
            write_row(self._leaves, out.observation, 0, values if plain else values[0])
        elif plain:
            array = out.observation[0]
            array[...] = checked_rows(self._leaves[0], values, array)
        else:
            for leaf, array, column in zip(self._leaves, out.observation, zip(*values, strict=True), strict=True):
                array[...] = checked_rows(leaf, column, array)
        try:
            out.reward[:] = rewards
        except (TypeError, ValueError):
            for e, reward in enumerate(rewards):
                check(_REWARD, reward, out.reward.dtype, e)
            raise
        return any_ended

    def close(self) -> None:
        envs, self._envs = self._envs, []
        for env in envs:
            env.close()

    def _restart_one(self, e: int, seed: int | None, out: Sequence[np.ndarray]) -> None:
        try:
            observation, info = self._envs[e].reset(seed=seed)
            values = [observation] if self._plain else self._flatten(observation, info)
            write_row(self._leaves, out, e, values)
        except Exception as error:
            error.add_note(f"in env {e} of this group of {self.spec.num_envs}, while resetting")
            raise

    def _flatten(self, observation: Any, info: dict) -> list[Any]:
        values = self._observation.flatten(observation)
        return [*values, *self._infos.values(info)] if self._infos else values


def _probe_infos(env: gymnasium.Env) -> Iterator[dict]:
    """The infos of one episode with random actions, then that of its reset."""
    _, at_reset = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(PROBED_STEPS):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        yield info
        if terminated or truncated:
            break
    yield at_reset
