"""Makes envs by a user's callable, and the adapter for what it returns."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from collectx.config.problem import counted
from collectx.env.base import Env
from collectx.env.env_indices import EnvNumbers
from collectx.env.mujoco_warnings import show_once
from collectx.env.sb3 import as_vector_env, is_vec_env
from collectx.env.torchrl import is_torchrl_env
from collectx.env.torchrl.specs import has_started
from collectx.errors import ConfigError
from collectx.user_objects import UserEnvConfig, shown


def make_user_env(cfg: UserEnvConfig, numbers: EnvNumbers) -> Env:
    """Returns the env group that `cfg.create` makes: the envs of a VectorEnv, of a VecEnv of Stable-Baselines3 or of a
    batched TorchRL env; or `cfg.num_envs` single envs (0: one), each made by a call. If `cfg.create` is itself an env,
    the group does not close it.
    """
    is_users = is_env(cfg.create)
    show_once()
    env: Any = as_vector_env(cfg.create if is_users else _create(cfg, numbers), cfg.info_keys)
    group: Env
    if is_torchrl_env(env):
        group = _torchrl_group(cfg, env, is_users, numbers)
        is_batched = bool(env.batch_size)
    elif isinstance(env, VectorEnv):
        from collectx.env.gym_vector import adapter

        _check_count(cfg, env.num_envs, f"a vector env of {counted(env.num_envs, 'env')}")
        group = adapter(env, cfg.info_keys, cfg.exclude_keys)
        is_batched = True
    elif isinstance(env, gymnasium.Env):
        from collectx.env.gym import group_class

        group = group_class(cfg.num_envs or 1)(_make_envs(cfg, env, numbers), cfg.info_keys, cfg.exclude_keys)
        is_batched = False
    else:
        raise ConfigError(
            f"create_env_fn={shown(cfg.create)} returned {_text(env)}, which is not an env. Return a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv, a TorchRL EnvBase, or a Stable-Baselines3 VecEnv."
        )
    if is_users and not is_torchrl_env(env):
        group.close = lambda: None  # type: ignore[method-assign]
    group.spec = dataclasses.replace(group.spec, is_single=not (is_batched or cfg.num_envs))
    return group


def _text(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    plain = value is None or isinstance(value, int | float | str)
    return repr(value) if plain else f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def is_env(value: Any) -> bool:
    """Whether `value` is an env, and not a function that makes one."""
    return isinstance(value, gymnasium.Env | VectorEnv) or is_torchrl_env(value) or is_vec_env(value)


def copied(cfg: UserEnvConfig, is_required: bool) -> UserEnvConfig:
    """Returns `cfg` with a copy of the env, if it contains an env object, so reading its spec neither starts nor resets
    it: an env that has started cannot be copied for workers, and one in this process begins only once. Unless
    `is_required`, returns `cfg` itself if the env cannot be copied: pickling a batched TorchRL env that has started
    would close it."""
    if not is_env(cfg.create):
        return cfg
    if not is_required and is_torchrl_env(cfg.create) and has_started(cfg.create):
        return cfg
    try:
        return pickle.loads(pickle.dumps(cfg))
    except Exception:
        if is_required:
            raise
        return cfg


def _torchrl_group(cfg: UserEnvConfig, env: Any, is_users: bool, numbers: EnvNumbers) -> Env:
    from collectx.env.torchrl.group import TorchrlEnv, split_serial_env

    if cfg.info_keys:
        raise ConfigError(
            f"info_keys={cfg.info_keys} cannot be used: {type(env).__name__} is a TorchRL env, so its specs define the "
            "keys of a batch. Add the keys to its observation_spec, for example with GymWrapper.set_info_dict_reader."
        )
    if env.batch_size:
        _check_count(cfg, env.batch_size.numel(), f"an env with batch size {list(env.batch_size)}")
        envs = [env] if is_users else split_serial_env(env)
    else:
        envs = _make_envs(cfg, env, numbers)
    return TorchrlEnv(envs, owned=not is_users, exclude=cfg.exclude_keys)


def _make_envs(cfg: UserEnvConfig, first: Any, numbers: EnvNumbers) -> list[Any]:
    """Returns `first` and the other envs of the group, which it makes."""
    if is_env(cfg.create):
        if cfg.num_envs not in (0, 1):
            advice = "Pass a function that makes an env, or leave num_envs out."
            raise ConfigError(f"num_envs={cfg.num_envs} cannot be used: create_env_fn is a single env. {advice}")
        return [first]
    count = cfg.num_envs or 1
    envs = [first, *(_create(cfg, numbers.of(e)) for e in range(1, count))]
    if len(set(map(id, envs))) < count:
        raise ConfigError(
            f"create_env_fn={shown(cfg.create)} returned the same env twice, but num_envs={count} needs a new one from "
            "each call. Create the env within the function."
        )
    return envs


def _create(cfg: UserEnvConfig, numbers: EnvNumbers) -> Any:
    with numbers.explained(cfg.create, cfg.kwargs):
        return cfg.create(**{**numbers.named_by(cfg.create), **cfg.kwargs})


def _check_count(cfg: UserEnvConfig, count: int, description: str) -> None:
    if cfg.num_envs not in (0, count):
        raise ConfigError(
            f"num_envs={cfg.num_envs} cannot be used: create_env_fn makes {description}. Use num_envs={count}, or "
            "leave num_envs out."
        )
