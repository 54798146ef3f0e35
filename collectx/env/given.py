"""Envs that a callable of the user's makes: adapted by what it returns. Called in the worker's process, and once by
whoever must know shapes."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from collectx.config import GymEnvConfig, GymVectorEnvConfig
from collectx.env.base import Env
from collectx.errors import ConfigError
from collectx.given import GivenEnvConfig


def make_given(cfg: GivenEnvConfig) -> Env:
    """The group of envs that `cfg.create` makes: a VectorEnv's envs, or one.

    Raises:
        ConfigError: it made something else.
        SpaceError: a space that cannot be stored as tensors.
    """
    made: Any = cfg.create(**cfg.kwargs)
    if isinstance(made, VectorEnv):
        from collectx.env.gym_vector import GymVectorEnv

        return GymVectorEnv(
            GymVectorEnvConfig("gym_vector", made.num_envs, None, None, {}, [], [], "vector_entry_point", None), made
        )
    if isinstance(made, gymnasium.Env):
        from collectx.env.gym import GymEnv

        return GymEnv(GymEnvConfig("gym", 1, None, None, {}, [], []), lambda: made)
    raise ConfigError(
        [
            f"create_env_fn: {cfg.create!r} returned a {type(made).__module__}.{type(made).__qualname__}: expected a "
            "gymnasium.Env or a gymnasium.vector.VectorEnv."
        ]
    )
