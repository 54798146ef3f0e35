"""Builds policies from the configuration, in every process, and actors over them, in the workers.

The policy of `policy=random` is None, and its actor is `RandomActor`. Modules are imported when they are used, so that
importing this package is cheap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from collectx.config.derived import resolve_devices
from collectx.config.registry import implementation
from collectx.config.schema.policy import CustomPolicyConfig
from collectx.errors import ConfigError
from collectx.policy.exploration import ExplorationType, exploration
from collectx.user_objects import UserPolicyConfig

if TYPE_CHECKING:
    import torch

    from collectx.config.schema.policy import PolicyConfig
    from collectx.config.schema.run import RunConfig
    from collectx.env.base import EnvSpec
    from collectx.policy.base import Actor

__all__ = [
    "ExplorationType",
    "accelerate",
    "build",
    "configured_actor",
    "exploration",
    "is_random_policy",
    "is_user_policy",
    "make_actor",
]

# The class of TorchRL or of this package. `RandomActor` replaces it, because it acts for one env, and actors act for
# groups.
_RANDOM_POLICY = "RandomPolicy"


def build(cfg: PolicyConfig, spec: EnvSpec, seed: int) -> Callable | None:
    """Returns the policy of `cfg`, on the CPU: an `nn.Module`, another callable, or None for random actions.

    The same seed gives the same weights, whatever torch's number of threads is. Does not change the global generators.
    Raises `ConfigError` or `SpaceError` if this kind of policy does not support `cfg` or the spaces of the env, or if
    its weights have no values."""
    from torch import nn

    policy = _built(cfg, spec, seed)
    weights = chain(policy.named_parameters(), policy.named_buffers()) if isinstance(policy, nn.Module) else ()
    for name, weight in weights:
        if weight.is_meta:
            raise ConfigError(
                f"the policy's weight {name!r} is on the device meta, which stores no values. Create the policy on a "
                "device with memory, or call policy.to_empty(device='cpu') and load its weights."
            )
    return policy


def _built(cfg: PolicyConfig, spec: EnvSpec, seed: int) -> Callable | None:
    if isinstance(cfg, UserPolicyConfig) and cfg.factory is None:
        return cfg.policy
    import torch

    from collectx.random_state import preserve_random_state, single_threaded

    if isinstance(cfg, UserPolicyConfig) and cfg.factory is not None:
        with single_threaded():
            return cfg.factory()
    build_kind = implementation("policy", cfg.kind)
    if build_kind is None:
        return None
    default = torch.get_default_dtype()
    if default != torch.float32 and not isinstance(cfg, CustomPolicyConfig):
        raise ConfigError(
            f"policy={cfg.kind} computes in float32, but torch.get_default_dtype() is {default}: your code, such as "
            "the env's module, has called torch.set_default_dtype. Remove this call, or use policy=custom."
        )
    with preserve_random_state(), single_threaded():
        torch.random.default_generator.manual_seed(seed)
        return build_kind(cfg, spec)


def is_user_policy(cfg: PolicyConfig) -> bool:
    """Whether `make_actor` calls the policy of `cfg` once, with `EnvSpec.example_observation`, to learn its outputs."""
    return isinstance(cfg, CustomPolicyConfig | UserPolicyConfig)


def is_random_policy(policy: object) -> bool:
    """Whether `policy` is a `RandomPolicy`."""
    return type(policy).__name__ == _RANDOM_POLICY


def accelerate(actor: Actor, cfg: PolicyConfig) -> None:
    """Applies `compile` and `cudagraph` of `cfg` to `actor`, whose module's tensors must be in their final memory."""
    if isinstance(cfg, UserPolicyConfig) and (cfg.compile is not None or cfg.cudagraph is not None):
        from collectx.policy.fast_call import Acceleration

        actor.accelerate(Acceleration(cfg.compile, cfg.cudagraph))


def configured_actor(
    cfg: RunConfig, policy: Callable | None, spec: EnvSpec, device: torch.device
) -> tuple[Actor, EnvSpec]:
    """Returns the actor over `policy` (see `make_actor`), and the spec of its envs, with `data_device` set if
    `cfg.devices` names a device for the policy."""
    if resolve_devices(cfg.devices).policy_device is not None:
        spec = dataclasses.replace(spec, data_device=device)
    skips_check = isinstance(cfg.policy, UserPolicyConfig) and cfg.policy.skip_signature_check
    return make_actor(policy, spec, device, ExplorationType(cfg.collector.exploration_type), skips_check), spec


def make_actor(
    policy: Callable | None,
    spec: EnvSpec,
    device: torch.device,
    exploration_type: ExplorationType,
    skip_signature_check: bool = False,
) -> Actor:
    """Returns the actor over `policy` (None, and a `RandomPolicy`: random actions), with the module moved to `device`.

    A user's policy is called once to learn its outputs, on `spec.example_observation`, or on zeros where that is empty.
    With `skip_signature_check`, a user's policy is called with a TensorDict, whatever its signature and `in_keys` are.
    Raises `ConfigError` or `DataError` if the policy does not fit the env; see `collectx.policy.user_actor`."""
    if policy is None or is_random_policy(policy):
        from collectx.policy.random import random_actor

        return random_actor(spec)
    from collectx.policy.stochastic import MaskedActor, StochasticActor, StochasticPolicy

    if isinstance(policy, StochasticPolicy):
        kind = StochasticActor if policy.legal is None else MaskedActor
        return kind(policy, spec, device, exploration_type)
    from collectx.policy.user_actor import UserActor

    return UserActor(policy, spec, device, exploration_type, skip_signature_check)
