"""Adapters of envs: each steps a group of envs in one process, by the interface `collectx.env.base.Env`.

Workers call `build`; `read_spec` tells shapes before any worker starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from collectx import process, progress
from collectx.batch import Key
from collectx.config.derived import env_option
from collectx.config.registry import implementation
from collectx.config.schema.env import EnvConfig, GymEnvConfig, GymnasiumConfig, GymVectorEnvConfig, TorchrlEnvConfig
from collectx.env.base import Env, EnvSpec, first_observations
from collectx.env.env_indices import SPACES, EnvNumbers
from collectx.env.infos import keep_mask, lacks_mask
from collectx.env.spaces import outside
from collectx.env.wrappers import normalizers_of
from collectx.errors import ConfigError
from collectx.fork_server import descendants
from collectx.random_state import preserve_random_state
from collectx.user_objects import UserEnvConfig

if TYPE_CHECKING:
    import torch


def build(cfg: EnvConfig, first_index: int = 0, incarnation: int = 0, numbers: EnvNumbers = SPACES) -> Env:
    """Makes the env group of `cfg`. Blocks until the envs are made. Raises `ConfigError` if the configuration names
    something that does not exist, or needs a package that is not installed, or `SpaceError` if a space cannot be stored
    as tensors.

    Args:
        first_index: index of the group's first env among all envs of the run. An added worker repeats the indices of
            another.
        incarnation: incarnation of the worker; see `collectx.worker.spec.Placement`.
        numbers: the env numbers of the group's first env.
    """
    try:
        if isinstance(cfg, UserEnvConfig):
            from collectx.env.user_env import make_user_env

            group = make_user_env(cfg, numbers)
        else:
            group = implementation("env", cfg.kind)(cfg, first_index, incarnation, numbers)
        if isinstance(cfg, GymnasiumConfig | TorchrlEnvConfig) and cfg.reset_options:
            try:
                group.set_reset_options(cfg.reset_options)
            except NotImplementedError as error:
                group.close()
                raise ConfigError(f"env.reset_options={cfg.reset_options}: {error}.") from None
        return group
    finally:
        process.restore_handlers(env_option(cfg))


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
    with preserve_random_state(), descendants.ending_env_processes():
        env = build(smallest, numbers=numbers)
        progress.one_more()
        try:
            first = _first_observations(env, cfg, with_example)
            spec = dataclasses.replace(
                env.spec,
                normalizers=normalizers_of(env.user_envs),
                example_observation=first if with_example else {},
                outside=outside(env.spec.observation_space, first),
            )
            examine(env)
            # A user's callable decides the number of envs itself.
            return spec if smallest is cfg else dataclasses.replace(spec, num_envs=cfg.num_envs)
        finally:
            env.close()
            process.restore_handlers(env_option(cfg))


def _first_observations(group: Env, cfg: EnvConfig, with_example: bool) -> dict[Key, torch.Tensor]:
    """Returns the first observations of a group; empty if it is not reset. Resets the group if `with_example`, or to
    look for a mask of legal actions in the infos. The group then keeps these infos."""
    seeds = [1] * group.spec.num_envs
    first = first_observations(group, seeds) if with_example else {}
    if not isinstance(cfg, GymnasiumConfig | UserEnvConfig) or not lacks_mask(group, cfg.exclude_keys):
        return first
    if not with_example:
        with contextlib.suppress(Exception):  # a worker whose reset fails reports it
            first = first_observations(group, seeds)
    is_kept = keep_mask(group, is_needed=not with_example)
    return first_observations(group, seeds) if is_kept and with_example else first
