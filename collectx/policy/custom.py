"""`policy.kind=custom`: the user's policy, from its import path.

`target` is "package.module:Name" or "package.module.Name". If the object is a policy (an `nn.Module`, or a function
that takes an observation), it is used as it is. Otherwise it is called with `kwargs`, and with `spec` (an `EnvSpec`) if
it has this parameter.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

from torch import nn

from collectx.config.schema.policy import CustomPolicyConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.user_objects import arguments_of, call, resolve


def build(cfg: CustomPolicyConfig, spec: EnvSpec) -> Any:
    """Returns the user's policy: an `nn.Module` or another callable. Raises `ConfigError` if `target` cannot be
    imported, or is not callable. Errors of the user's code are not caught."""
    target = resolve(cfg.target, "policy.target")
    if isinstance(target, nn.Module):
        # Trainer and inline workers share a process, but must not share weights.
        target = copy.deepcopy(target)
    kwargs = dict(cfg.kwargs)
    policy = _call_factory(target, spec, kwargs)
    # A factory may return another factory (a class, a partial), which takes no kwargs.
    if policy is not target and not isinstance(policy, nn.Module):
        policy = _call_factory(policy, spec, {})
    if not callable(policy):
        raise ConfigError(
            f"policy.target={cfg.target} returned a value of type {type(policy).__name__}, which is not a policy. "
            "Return a function from the observation to the action."
        )
    return policy


def _call_factory(factory: Any, spec: EnvSpec, kwargs: dict[str, Any]) -> Any:
    """Returns `factory(**kwargs)`, with `spec` if it takes one; bound only if arguments are missing."""
    if isinstance(factory, nn.Module) or not callable(factory):
        return factory
    kwargs = arguments_of(factory, kwargs, "policy.kwargs")
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin without a signature
        return factory(**kwargs)
    if "spec" in signature.parameters:
        kwargs = {"spec": spec, **kwargs}
    if not inspect.isclass(factory):
        try:
            signature.bind(**kwargs)
        except TypeError:
            return functools.partial(factory, **kwargs) if kwargs else factory
    return call(factory, kwargs, "policy.kwargs")
