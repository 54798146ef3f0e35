"""Adapts a VecEnv of Stable-Baselines3 to a Gymnasium VectorEnv with autoreset mode SAME_STEP. A VecEnv is recognised
by its methods; stable_baselines3 is not imported.

    VecEnv.step_wait                             VectorEnv.step
    observation after the reset of ended envs    observation
    infos[e]["terminal_observation"]             info["final_obs"][e]
    dones[e], infos[e]["TimeLimit.truncated"]    truncated[e] where both are set, otherwise terminated[e]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from collectx.errors import ConfigError, DataError

# Episodes whose ends are checked.
_FIRST_ENDS = 3
_METHODS = ("step_async", "step_wait", "reset", "seed", "env_is_wrapped")


def is_vec_env(value: Any) -> bool:
    """Whether `value` is a VecEnv; False for a class or function that makes one."""
    # Looks in the class, because TorchRL's envs look up unknown attributes in the envs below them.
    has_methods = all(callable(getattr(type(value), name, None)) for name in _METHODS)
    return has_methods and not isinstance(value, type | VectorEnv)


class VecEnvAdapter(VectorEnv):
    """A VecEnv as a VectorEnv; see the module's docstring. Other infos are dropped."""

    def __init__(self, env: Any):
        self._env = env
        self.num_envs = int(env.num_envs)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        self._first_ends: list[bool] = []
        self.metadata = {**(getattr(env, "metadata", None) or {}), "autoreset_mode": AutoresetMode.SAME_STEP}

    @property
    def envs(self) -> list[Any]:
        """The envs of a DummyVecEnv; [] if they are in other processes."""
        return getattr(getattr(self._env, "unwrapped", self._env), "envs", [])

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        if envs:
            self._env.unwrapped.envs = envs

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            # Env i gets seed + i; at most 32 bits.
            self._env.seed(int(seed) % (2**32 - self.num_envs))
        self._before = self._env.reset()
        return self._before, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._env.step_async(actions)
        observation, rewards, dones, infos = self._env.step_wait()
        is_cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        dones, info = np.asarray(dones, bool), {}
        if dones.any():
            final = np.full(self.num_envs, None, object)
            for e in np.flatnonzero(dones).tolist():
                final[e] = infos[e]["terminal_observation"]
                if not self.envs:
                    self._check_final(final[e], observation, e)
            info["final_obs"] = final
        self._before = observation
        return observation, rewards, dones & ~is_cut, dones & is_cut, info

    def _check_final(self, final: Any, first: Any, e: int) -> None:
        """Raises `DataError` if the first ends of episodes each returned the first observation of the next episode as
        the final one. A SubprocVecEnv sends both after the reset, when an env that reuses its arrays has overwritten
        the final one. Observations that do not change within an episode do not count."""
        if len(self._first_ends) < _FIRST_ENDS and not _equal(final, self._before, e):
            self._first_ends.append(_equal(final, first, e))
            if sum(self._first_ends) == _FIRST_ENDS:
                raise DataError(
                    f"{_FIRST_ENDS} episodes ended with the observation with which the next one begins. If step() and "
                    "reset() of the envs return the same array, return a copy; otherwise use a DummyVecEnv."
                )

    def close(self, **options: Any) -> None:
        self._env.close()


def _equal(one: Any, many: Any, e: int) -> bool:
    """Whether an observation equals the one of env `e` in a batch."""
    if isinstance(one, dict):
        return all(np.array_equal(part, many[name][e]) for name, part in one.items())
    return np.array_equal(one, many[e])


def as_vector_env(env: Any, info_keys: Any = ()) -> Any:
    """Returns `env`; for a VecEnv, its adapter. Raises `ConfigError` if `env` is a VecEnv, and `info_keys` is not
    empty."""
    if not is_vec_env(env):
        return env
    if info_keys:
        raise ConfigError(
            "collectx cannot read the infos of a Stable-Baselines3 VecEnv. Leave out info_keys and metrics "
            f"({', '.join(map(str, info_keys))})."
        )
    return VecEnvAdapter(env)
