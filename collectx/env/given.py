"""Envs that a callable of the user's makes: adapted by what it returns. Called in the worker's process, and once by
whoever must know shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from collectx.config import GymEnvConfig, GymVectorEnvConfig
from collectx.env.base import Env
from collectx.env.torchrl_specs import is_torchrl_env
from collectx.errors import ConfigError
from collectx.given import GivenEnvConfig


def make_given(cfg: GivenEnvConfig) -> Env:
    """The group of envs that `cfg.create` makes: a VectorEnv's envs, those of a batched env of TorchRL, or one. An env
    of TorchRL may be given itself, and then is the caller's to close.

    Raises:
        ConfigError: it made something else.
        SpaceError: a space that cannot be stored as tensors.
    """
    itself = is_torchrl_env(cfg.create)
    made: Any = cfg.create if itself else cfg.create(**cfg.kwargs)
    if is_torchrl_env(made):
        from collectx.env.torchrl import TorchrlEnv, split

        group = TorchrlEnv([made] if itself else split(made), owned=not itself)
        return group if made.batch_size else _single(group)
    if isinstance(made, VectorEnv):
        from collectx.env.gym_vector import GymVectorEnv

        return GymVectorEnv(
            GymVectorEnvConfig("gym_vector", made.num_envs, None, None, {}, [], [], "vector_entry_point", None), made
        )
    if isinstance(made, gymnasium.Env):
        from collectx.env.gym import GymEnv

        return _single(GymEnv(GymEnvConfig("gym", 1, None, None, {}, [], []), lambda: made))
    raise ConfigError(
        [
            f"create_env_fn: {cfg.create!r} returned a {type(made).__module__}.{type(made).__qualname__}: expected a "
            "gymnasium.Env, a gymnasium.vector.VectorEnv, or an EnvBase of TorchRL."
        ]
    )


def _single(env: Env) -> Env:
    env.spec = dataclasses.replace(env.spec, is_single=True)
    return env
