"""Envs: adapters with one narrow contract (`collectx.env.base.Env`) for a group of envs in one process.

`build` is called by the rollout's worker, `read_spec` by whoever must know shapes before any worker starts. Each kind's
module is imported only when chosen.
"""

from __future__ import annotations

import dataclasses

from collectx.config import (
    CountingEnvConfig,
    EnvConfig,
    EnvPoolEnvConfig,
    GymEnvConfig,
    GymVectorEnvConfig,
    TorchrlEnvConfig,
)
from collectx.env.base import Env, EnvSpec, first_observations
from collectx.errors import ConfigError
from collectx.random_state import preserve_random_state
from collectx.user_objects import UserEnvConfig

KINDS = ("gym", "gym_vector", "envpool", "torchrl", "counting")


def build(cfg: EnvConfig, first_index: int = 0, life: int = 0) -> Env:
    """The group of envs that `cfg` describes. Blocks while the envs are made.

    Args:
        first_index: index over the whole run of the group's first env.
        life: how often the group was built before, for a worker that is gone.

    Raises:
        ConfigError: the configuration is wrong, or a package that it needs is not installed.
        SpaceError: a space that cannot be stored as tensors.
    """
    if isinstance(cfg, UserEnvConfig):
        from collectx.env.user_env import make_user_env

        return make_user_env(cfg)
    if cfg.num_envs < 1:
        raise ConfigError([f"env.num_envs={cfg.num_envs} is below 1"])
    if isinstance(cfg, GymEnvConfig | GymVectorEnvConfig):
        from collectx.env.gym_factory import installed

        with installed(cfg):
            if isinstance(cfg, GymVectorEnvConfig):
                from collectx.env.gym_vector import GymVectorEnv

                return GymVectorEnv(cfg)
            from collectx.env.gym import GymEnv

            return GymEnv(cfg)
    if isinstance(cfg, EnvPoolEnvConfig):
        from collectx.env.envpool import EnvPoolEnv

        return EnvPoolEnv(cfg)
    if isinstance(cfg, TorchrlEnvConfig):
        from collectx.env.torchrl import make_torchrl

        return make_torchrl(cfg)
    if isinstance(cfg, CountingEnvConfig):
        from collectx.env.counting import CountingEnv

        return CountingEnv(cfg, first_index, life)
    raise ConfigError([f"env.kind={cfg.kind} is not one of {', '.join(KINDS)}"])


def read_spec(cfg: EnvConfig, with_first: bool = False) -> EnvSpec:
    """What `build(cfg)` would produce and take; makes one env at most where envs are independent, and closes it.

    Args:
        with_first: also resets it, for `EnvSpec.first`. The global random generators are left as they were.
    """
    # An entry point of a vector env, and EnvPool, may depend on how many envs there are; a group of gym envs does not.
    small = dataclasses.replace(cfg, num_envs=min(cfg.num_envs, 1)) if isinstance(cfg, GymEnvConfig) else cfg
    env = build(small)
    try:
        spec = env.spec
        if with_first:
            with preserve_random_state():
                spec = dataclasses.replace(spec, first=first_observations(env, [0] * spec.num_envs))
        # Only a callable knows how many envs it makes.
        return spec if small is cfg else dataclasses.replace(spec, num_envs=cfg.num_envs)
    finally:
        env.close()
