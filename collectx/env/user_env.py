"""Makes envs by a user's callable and chooses the adapter by what it returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from collectx.env.base import Env
from collectx.env.torchrl_specs import is_torchrl_env
from collectx.errors import ConfigError
from collectx.user_objects import UserEnvConfig


def make_user_env(cfg: UserEnvConfig) -> Env:
    """The group of envs that `cfg.create` makes: those of a VectorEnv or of a batched env of TorchRL, or `cfg.num_envs`
    single ones (0: one), each made by one call. `cfg.create` may also be an env of TorchRL; it is not closed then.

    Raises:
        ConfigError: it made something else, or another number of envs, or the env has no infos to keep.
        SpaceError: a space that cannot be stored as tensors.
    """
    is_users = is_torchrl_env(cfg.create)
    env: Any = cfg.create if is_users else cfg.create(**cfg.kwargs)
    if is_torchrl_env(env):
        return _torchrl_group(cfg, env, is_users)
    if isinstance(env, VectorEnv):
        from collectx.env.gym_vector import GymVectorEnv

        _check_count(cfg, env.num_envs, f"a vector env of {env.num_envs}")
        return GymVectorEnv(env, cfg.info_keys, cfg.exclude_keys)
    if isinstance(env, gymnasium.Env):
        from collectx.env.gym import GymEnv

        group = GymEnv(_make_envs(cfg, env), cfg.info_keys, cfg.exclude_keys)
        return group if cfg.num_envs > 1 else _as_single(group)
    raise ConfigError(
        [
            f"create_env_fn: {cfg.create!r} returned a {type(env).__module__}.{type(env).__qualname__}: expected a "
            "gymnasium.Env, a gymnasium.vector.VectorEnv, or an EnvBase of TorchRL."
        ]
    )


def _torchrl_group(cfg: UserEnvConfig, env: Any, is_users: bool) -> Env:
    from collectx.env.torchrl import TorchrlEnv, split_serial_env

    if cfg.info_keys:
        raise ConfigError(
            [
                f"info_keys={cfg.info_keys}: {type(env).__name__} is an env of TorchRL, whose specs define the keys of "
                "a batch: add the keys to its observation_spec, as GymWrapper.set_info_dict_reader does."
            ]
        )
    if env.batch_size:
        _check_count(cfg, env.batch_size.numel(), f"an env of batch size {list(env.batch_size)}")
        envs = [env] if is_users else split_serial_env(env)
    elif is_users:
        _check_count(cfg, 1, "one env, as it is an env and no function")
        envs = [env]
    else:
        envs = _make_envs(cfg, env)
    group = TorchrlEnv(envs, owned=not is_users, exclude=cfg.exclude_keys)
    return group if env.batch_size or len(envs) > 1 else _as_single(group)


def _make_envs(cfg: UserEnvConfig, first: Any) -> list[Any]:
    """`first`, and the other envs of the group."""
    count = cfg.num_envs or 1
    envs = [first, *(cfg.create(**cfg.kwargs) for _ in range(count - 1))]
    if len(set(map(id, envs))) < count:
        raise ConfigError(
            [
                f"num_envs={count}: create_env_fn={cfg.create!r} returned the same env twice: make a new one in each "
                "call."
            ]
        )
    return envs


def _check_count(cfg: UserEnvConfig, count: int, description: str) -> None:
    if cfg.num_envs not in (0, count):
        raise ConfigError(
            [f"num_envs={cfg.num_envs}: create_env_fn makes {description}: use num_envs={count}, or leave it out."]
        )


def _as_single(env: Env) -> Env:
    env.spec = dataclasses.replace(env.spec, is_single=True)
    return env
