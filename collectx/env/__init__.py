"""Adapters of envs: each steps a group of envs in one process, by the interface `collectx.env.base.Env`.

Workers call `build`; `read_spec` tells shapes before any worker starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from collectx import signal_handlers
from collectx.config.derived import env_option
from collectx.config.registry import implementation
from collectx.config.schema.env import EnvConfig, GymEnvConfig, GymnasiumConfig, GymVectorEnvConfig, TorchrlEnvConfig
from collectx.env.base import Env, EnvSpec, first_observations
from collectx.env.infos import keep_mask
from collectx.env.numbers import SPACES, EnvNumbers
from collectx.env.wrappers import normalizers_of
from collectx.errors import ConfigError
from collectx.fork_server import descendants
from collectx.random_state import preserve_random_state
from collectx.user_objects import UserEnvConfig


def build(cfg: EnvConfig, first_index: int = 0, incarnation: int = 0, numbers: EnvNumbers = SPACES) -> Env:
    """Makes the env group of `cfg`. Blocks until the envs are made.

    Args:
        first_index: index of the group's first env among all envs of the run. An added worker repeats the indices of
            another.
        incarnation: incarnation of the worker; see `collectx.worker.spec.Placement`.
        numbers: the env numbers of the group's first env.

    Raises:
        ConfigError: the configuration names something that does not exist, or needs a package that is not installed.
        SpaceError: a space cannot be stored as tensors.
    """
    try:
        if isinstance(cfg, UserEnvConfig):
            from collectx.env.user_env import make_user_env

            return make_user_env(cfg, numbers)
        group = implementation("env", cfg.kind)(cfg, first_index, incarnation, numbers)
        if isinstance(cfg, GymnasiumConfig | TorchrlEnvConfig) and cfg.reset_options:
            try:
                group.set_reset_options(cfg.reset_options)
            except NotImplementedError as error:
                group.close()
                raise ConfigError(f"env.reset_options={cfg.reset_options}: {error}.") from None
        return group
    finally:
        signal_handlers.restore(env_option(cfg))


def read_spec(
    cfg: EnvConfig,
    with_example: bool = False,
    examine: Callable[[Env], object] = lambda group: None,
    numbers: EnvNumbers = SPACES,
) -> EnvSpec:
    """Returns the spec of the group that `build(cfg)` makes. Makes and closes the envs; only one of them if they are
    independent of each other. Does not change the global random generators. Contains the mask of legal actions that an
    env returns in the `info` of a reset.

    Args:
        with_example: whether to reset the envs, for `EnvSpec.example_observation`.
        examine: called with the env group before it is closed.
        numbers: the env numbers of the first env.
    """
    # A call that makes several envs may depend on their number; making single Gymnasium envs does not.
    is_of_singles = isinstance(cfg, GymEnvConfig) or (isinstance(cfg, GymVectorEnvConfig) and not cfg.is_batched)
    smallest = dataclasses.replace(cfg, num_envs=min(cfg.num_envs, 1)) if is_of_singles else cfg
    with preserve_random_state(), descendants.hosted():
        env = build(smallest, numbers=numbers)
        try:
            if isinstance(cfg, GymnasiumConfig | UserEnvConfig):
                keep_mask(env, cfg.exclude_keys, is_needed=not with_example)
            spec = dataclasses.replace(env.spec, normalizers=normalizers_of(env.user_envs))
            if with_example:
                spec = dataclasses.replace(spec, example_observation=first_observations(env, [1] * spec.num_envs))
            examine(env)
            # A user's callable decides the number of envs itself.
            return spec if smallest is cfg else dataclasses.replace(spec, num_envs=cfg.num_envs)
        finally:
            env.close()
            signal_handlers.restore(env_option(cfg))
