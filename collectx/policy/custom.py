"""`policy.kind=custom`: the user's own policy, found by its import path.

`target` is "package.module:Name" or "package.module.Name". What it names is called with `kwargs`, and with `spec` (an
`EnvSpec`) if it takes one, unless it is a policy already: an `nn.Module`, or a function that wants an observation.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from typing import Any

from torch import nn

from collectx.config import CustomPolicyConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError


def build(cfg: CustomPolicyConfig, spec: EnvSpec) -> Any:
    """The user's policy: an `nn.Module` or another callable.

    Raises:
        ConfigError: nothing is found at `target`, or it is not callable. What the user's code raises passes through.
    """
    found = locate("policy.target", cfg.target)
    if isinstance(found, nn.Module):
        # Trainer and inline workers share a process, but must not share weights.
        found = copy.deepcopy(found)
    kwargs = dict(cfg.kwargs)
    policy = _call_factory(found, spec, kwargs)
    # What a factory returns may be a factory once more (a class, a partial), but never one with the same kwargs.
    if policy is not found and not isinstance(policy, nn.Module):
        policy = _call_factory(policy, spec, {})
    if not callable(policy):
        raise ConfigError(
            [f"policy.target={cfg.target} gave a {type(policy).__name__}, which cannot be called with an observation."]
        )
    return policy


def locate(key: str, target: str) -> Any:
    """The object at an import path.

    Raises:
        ConfigError: there is none; `key` is the configuration key that the message names.
    """
    module_name, _, attributes = target.partition(":")
    if not attributes:
        module_name, _, attributes = target.rpartition(".")
    if not module_name or not attributes:
        raise ConfigError([f"{key}={target} is no import path: write package.module:Name."])
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError([f"{key}={target}: {error}. Is it installed, or on PYTHONPATH?"]) from error
    for name in attributes.split("."):
        if not hasattr(found, name):
            names = ", ".join(n for n in dir(found) if not n.startswith("_"))
            raise ConfigError([f"{key}={target}: {module_name} has no {name!r}; it has {names}."])
        found = getattr(found, name)
    return found


def _call_factory(found: Any, spec: EnvSpec, kwargs: dict[str, Any]) -> Any:
    """`found(**kwargs)`, with `spec` if it takes one; or `found` with kwargs bound, if arguments are still missing."""
    if isinstance(found, nn.Module) or not callable(found):
        return found
    try:
        signature = inspect.signature(found)
    except ValueError:  # a builtin without a signature
        return found(**kwargs)
    if "spec" in signature.parameters:
        kwargs = {"spec": spec, **kwargs}
    if not inspect.isclass(found):
        try:
            signature.bind(**kwargs)
        except TypeError:
            return functools.partial(found, **kwargs) if kwargs else found
    return found(**kwargs)
