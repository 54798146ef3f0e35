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
from collectx.user_objects import UserEnvConfig


def make_user_env(cfg: UserEnvConfig) -> Env:
    """The group of envs that `cfg.create` makes: a VectorEnv's envs, those of a batched env of TorchRL, or
    `cfg.num_envs` plain ones, each by a call of its own (one, where that is 0). An env of TorchRL may be given itself,
    and then is the caller's to close.

    Raises:
        ConfigError: it made something else, or not so many envs, or the env has no infos to keep.
        SpaceError: a space that cannot be stored as tensors.
    """
    itself = is_torchrl_env(cfg.create)
    made: Any = cfg.create if itself else cfg.create(**cfg.kwargs)
    if is_torchrl_env(made):
        return _torchrl(cfg, made, itself)
    if isinstance(made, VectorEnv):
        from collectx.env.gym_vector import GymVectorEnv

        _check_count(cfg, made.num_envs, f"a vector env of {made.num_envs}")
        return GymVectorEnv(
            GymVectorEnvConfig(
                kind="gym_vector",
                num_envs=made.num_envs,
                id=None,
                entry_point=None,
                kwargs={},
                wrappers=[],
                info_keys=cfg.info_keys,
                vectorization_mode="vector_entry_point",
                autoreset_mode=None,
                exclude_keys=cfg.exclude_keys,
            ),
            made,
        )
    if isinstance(made, gymnasium.Env):
        from collectx.env.gym import GymEnv

        size = cfg.num_envs or 1
        plain = GymEnvConfig(
            kind="gym",
            num_envs=size,
            id=None,
            entry_point=None,
            kwargs={},
            wrappers=[],
            info_keys=cfg.info_keys,
            exclude_keys=cfg.exclude_keys,
        )
        group = GymEnv(plain, iter(_several(cfg, made, size)).__next__)
        return _single(group) if size == 1 else group
    raise ConfigError(
        [
            f"create_env_fn: {cfg.create!r} returned a {type(made).__module__}.{type(made).__qualname__}: expected a "
            "gymnasium.Env, a gymnasium.vector.VectorEnv, or an EnvBase of TorchRL."
        ]
    )


def _torchrl(cfg: UserEnvConfig, made: Any, itself: bool) -> Env:
    from collectx.env.torchrl import TorchrlEnv, split

    if cfg.info_keys:
        raise ConfigError(
            [
                f"info_keys={cfg.info_keys}: {type(made).__name__} is an env of TorchRL, whose specs say what is in a "
                "batch: add the keys to its observation_spec, as GymWrapper.set_info_dict_reader does."
            ]
        )
    if made.batch_size:
        count = made.batch_size.numel()
        _check_count(cfg, count, f"an env of batch size {list(made.batch_size)}")
        envs = [made] if itself else split(made)
    elif itself:
        _check_count(cfg, 1, "one env, as it is an env itself and no function")
        envs = [made]
    else:
        envs = _several(cfg, made, cfg.num_envs or 1)
    group = TorchrlEnv(envs, owned=not itself, exclude=cfg.exclude_keys)
    return group if made.batch_size or len(envs) > 1 else _single(group)


def _several(cfg: UserEnvConfig, first: Any, count: int) -> list[Any]:
    """So many plain envs, the first of which is made."""
    envs = [first, *(cfg.create(**cfg.kwargs) for _ in range(count - 1))]
    if len(set(map(id, envs))) < count:
        raise ConfigError(
            [
                f"num_envs={count}: create_env_fn={cfg.create!r} returned the same env twice: make a new one in each "
                "call."
            ]
        )
    return envs


def _check_count(cfg: UserEnvConfig, count: int, what: str) -> None:
    if cfg.num_envs not in (0, count):
        raise ConfigError(
            [f"num_envs={cfg.num_envs}: create_env_fn makes {what}: use num_envs={count}, or leave it out."]
        )


def _single(env: Env) -> Env:
    env.spec = dataclasses.replace(env.spec, is_single=True)
    return env
