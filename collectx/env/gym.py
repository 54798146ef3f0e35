"""Kind `gym`: a group of Gymnasium envs, stepped one after the other in a plain Python loop.

The constructor computes what does not change between steps, so that a step of the group calls each env's `step` and
little else.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy import ndarray

from collectx import progress
from collectx.batch import is_numeric
from collectx.config.problem import opt
from collectx.config.schema.env import GymEnvConfig
from collectx.env.base import Env, EnvSpec, StepArrays, closed_on_error
from collectx.env.env_indices import EnvNumbers
from collectx.env.gym_factory import env_factory, explain_errors
from collectx.env.infos import InfoKeys
from collectx.env.metrics import InfoMetrics
from collectx.env.mujoco_warnings import advice_on_display
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves, write_env, write_leaf
from collectx.env.wrappers import refuse, refuse_action
from collectx.errors import ConfigError, DataError

# float32, the dtype of rewards, contains all integers up to this one.
_EXACT = 2**24


def build(cfg: GymEnvConfig, first_index: int, incarnation: int, numbers: EnvNumbers) -> GymEnv:
    with explain_errors(cfg):
        make = env_factory(cfg)
        made = (make(numbers.of(e)) for e in range(cfg.num_envs))
        return group_class(cfg.num_envs)(made, cfg.info_keys, cfg.exclude_keys, cfg.metrics)


def group_class(num_envs: int) -> type[GymEnv]:
    """Returns the class for a group of `num_envs` envs."""
    return OneGymEnv if num_envs == 1 else GymEnv


def _refuse_others(env: Any) -> None:
    """Raises `ConfigError` for an env of PettingZoo or of dm_env, by its methods."""
    if isinstance(getattr(env, "observation_space", None), gymnasium.Space):
        # A wrapper of such an env, which may pass on the attributes of what it wraps.
        return
    base = getattr(env, "unwrapped", env)
    kind = type(base).__name__
    if hasattr(base, "possible_agents") and callable(getattr(base, "action_space", None)):
        raise ConfigError(
            f"{kind} is a multi-agent env of PettingZoo. Use env=torchrl with a function that returns TorchRL's "
            "PettingZooWrapper(env): see the tutorial on multi-agent envs."
        )
    if callable(getattr(base, "action_spec", None)) and callable(getattr(base, "observation_spec", None)):
        raise ConfigError(
            f"{kind} has the interface of dm_env. Wrap it with shimmy.DmControlCompatibilityV0(env), or use "
            "env=torchrl with TorchRL's DMControlWrapper(env)."
        )


def _check_spaces(env: Any) -> None:
    _refuse_others(env)
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            made = type(getattr(env, "unwrapped", env)).__name__
            raise ConfigError(f"{made} has no {name}. Set observation_space and action_space in its constructor.")


class GymEnv(Env):
    """A group of Gymnasium envs, each with its own seed.

    Discrete actions are passed as Python integers, all others as views of a copy, so an env may keep or change its
    action. Actions are not clipped. `envs` yields the envs, at least one. If it raises, the envs before are closed."""

    def __init__(
        self,
        envs: Iterable[gymnasium.Env],
        info_keys: Sequence[Any] = (),
        exclude_keys: Sequence[str] = (),
        metrics: Sequence[str] = (),
    ):
        self.user_envs: list[gymnasium.Env] = []
        with closed_on_error(self):
            for env in envs:
                self.user_envs.append(env)
                progress.one_more()
            first = self.user_envs[0]
            _check_spaces(first)
            self._observation = ObservationLeaves(first.observation_space, exclude_keys, info_keys)
            action = SpaceLeaves(first.action_space, ("action",))
            infos = InfoKeys(info_keys, first)
        spaces = (self._observation.space, first.action_space)
        self.spec = EnvSpec(len(self.user_envs), self._observation.leaves, action.leaves, *spaces)
        self.keep_infos(infos)
        self._split = action.element_splitter()
        self._steps = [env.step for env in self.user_envs]
        if metrics:
            self.metrics = InfoMetrics(metrics)
            self._steps = [partial(self.metrics.step, e, step) for e, step in enumerate(self._steps)]

    def keep_infos(self, infos: InfoKeys) -> None:
        self._infos = infos
        self._leaves = (*self._observation.leaves, *infos.leaves)
        self.spec = dataclasses.replace(self.spec, observation=self._leaves, infos=infos.declared)
        # Whether the observation itself is the value of the only leaf.
        self._is_array = self._observation.single and not self._observation.has_text and not infos.leaves

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        infos = [self._reset_one(e, None if seeds is None else int(seeds[e]), out) for e in range(self.spec.num_envs)]
        self.reset_info = infos[0]

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        for e in np.flatnonzero(ended).tolist():
            if self.metrics is not None:
                self.metrics.cut(e)
            self._reset_one(e, None, out)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        any_ended = False
        is_array, leaves, rewards = self._is_array, self._leaves, out.reward
        leaf, array = leaves[0], out.observation[0]
        shape, dtype = leaf.shape, array.dtype
        for e, (step, one) in enumerate(zip(self._steps, self._split(action), strict=True)):
            try:
                observation, reward, terminated, truncated, info = step(one)
                values = None if is_array else self._values(observation, info)
            except Exception as error:
                self._explain(error, e, one)
                raise
            # Written before the next env steps, because envs may return the same array.
            if values is not None:
                write_env(leaves, out.observation, e, values)
            elif type(observation) is ndarray and observation.shape == shape and observation.dtype is dtype:
                array[e] = observation
            else:
                write_leaf(leaf, array, e, observation)
            rewards[e] = reward if isinstance(reward, float) else reward_number(reward, e)
            if terminated or truncated:
                out.terminated[e] = end_flag(terminated, "terminated", e)
                out.truncated[e] = end_flag(truncated, "truncated", e)
                _check_info(info, "step", e)
                any_ended = True
        return any_ended

    def _explain(self, error: Exception, e: int, action: Any) -> None:
        """Adds a note to an error of env `e` in a step; raises `DataError` if the env uses Gym's old interface, or the
        policy chose an action that does not exist."""
        refuse(error, "step", f"env {e}")
        space = self.user_envs[e].action_space
        refuse_action(error, space, action, e)
        if isinstance(space, spaces.Box) and not space.contains(action):
            error.add_note(
                f"the action {action} is not in {space}; if the env needs its bounds, add "
                f"{opt('env.wrappers=[ClipAction]')}"
            )
        self._note(error, "step", e)

    def _note(self, error: Exception, name: str, e: int) -> None:
        if advice := advice_on_display(error):
            error.add_note(advice)
        error.add_note(f"raised in {name}() of env {e} (of {self.spec.num_envs})")

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        self.reset_options = options or {}

    def close(self) -> None:
        with ExitStack() as stack:  # closes the other envs too if one raises
            while self.user_envs:
                stack.callback(self.user_envs.pop().close)

    def _reset_one(self, e: int, seed: int | None, out: Sequence[np.ndarray]) -> Mapping[str, Any]:
        """Resets an env, and writes its part of `out`. Returns the info."""
        result = None
        try:
            result = self.user_envs[e].reset(seed=seed, **self.reset_kwargs())
            progress.one_more()
            write_env(self._leaves, out, e, self._values(*result))
            _check_info(result[1], "reset", e)
            return result[1]
        except Exception as error:
            refuse(error, "reset", f"env {e}", result)
            self._note(error, "reset", e)
            raise

    def _values(self, observation: Any, info: dict) -> list[Any]:
        values = self._observation.flatten(observation)
        return [*values, *self._infos.values(info)] if self._infos.leaves else values


class OneGymEnv(GymEnv):
    """A group of one env, whose step makes no lists or arrays of several envs' values."""

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        one = self._split(action)[0]
        try:
            observation, reward, terminated, truncated, info = self._steps[0](one)
            values = None if self._is_array else self._values(observation, info)
        except Exception as error:
            self._explain(error, 0, one)
            raise
        if values is None:
            # Half the cost of `write_env`.
            write_leaf(self._leaves[0], out.observation[0], 0, observation)
        else:
            write_env(self._leaves, out.observation, 0, values)
        out.reward[0] = reward if isinstance(reward, float) else reward_number(reward, 0)
        if not (terminated or truncated):
            return False
        out.terminated[0] = end_flag(terminated, "terminated", 0)
        out.truncated[0] = end_flag(truncated, "truncated", 0)
        _check_info(info, "step", 0)
        return True


def _check_info(info: Any, method: str, e: int) -> None:
    """Raises `DataError` unless `info` is a dict. Called once per episode, which costs less than in each step."""
    if not isinstance(info, Mapping):
        raise DataError(
            f"the info of env {e} must be a dict, but is {info!r:.100}. Return {{}} from {method}() if there is none."
        )


def end_flag(value: Any, name: str, e: int | None) -> bool:
    """Returns whether the episode of env `e` ended. Raises `DataError` unless `value` is a bool, 0 or 1, or contains
    one. A float is refused, also 1.0: it is a reward in the wrong place."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu" or array.item() not in (0, 1):
        source = "" if e is None else f" of env {e}"
        raise DataError(
            f"{name}{source} must be a bool, but is {value!r:.100}. Return observation, reward, terminated, truncated, "
            "info from step(), in this order."
        )
    return bool(array.item())


def reward_number(reward: Any, e: int | None = None) -> float:
    """Returns the reward of env `e` of a group, which must be a number or contain one element. Raises `DataError` if
    the reward is not a number, or an integer that float32 cannot represent."""
    if isinstance(reward, float | np.floating):
        return float(reward)
    source, advice = "" if e is None else f" of env {e}", "Return a float from step()"
    if isinstance(reward, int | np.integer):
        return _stored_integer(int(reward), source)
    try:
        array = np.asarray(reward)
    except ValueError:
        got = f"a ragged {type(reward).__name__}"
    else:
        if array.size == 1 and is_numeric(array.dtype):
            return reward_number(array.reshape(-1)[0].item(), e)
        got = f"an array of shape {array.shape} and dtype {array.dtype}" if array.shape else f"{reward!r:.100}"
        if array.size > 1:
            advice += (
                ". To add up several objectives, put mo_gymnasium.wrappers.LinearReward into env.wrappers. To store "
                "all of them, use env=torchrl with TorchRL's MOGymWrapper"
            )
    raise DataError(f"the reward{source} must be a single number, but is {got}. {advice}.")


def _stored_integer(number: int, source: str) -> float:
    if abs(number) <= _EXACT:
        return float(number)
    try:
        (stored,) = struct.unpack("f", struct.pack("f", float(number)))
    except OverflowError:
        stored = math.inf
    if stored != number:
        raise DataError(
            f"the reward {number!s:.40}{source} would be rounded to {stored:.0f}, because rewards are stored as "
            "float32. To allow this, return float(reward) from step()."
        )
    return stored
