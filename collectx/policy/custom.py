"""`policy.kind=custom`: the user's policy, from its import path.

`target` is "package.module:Name" or "package.module.Name". If the object is a policy (an `nn.Module`, or a function
that takes an observation), it is used as it is. Otherwise it is called with `kwargs`, and with `spec` (an `EnvSpec`) if
it has this parameter.

`policy_from_agent` converts agents of CleanRL and Stable-Baselines3 to policies, and imports neither library.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
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
    return call(factory, kwargs, "policy.kwargs", {"spec": spec})


def policy_from_agent(agent: Any, *, deterministic: bool = False) -> TensorDictModule:
    """Returns a policy that acts like an agent of another library, and shares the agent's parameters.

    Args:
        agent: an `nn.Module` with `get_action_and_value(observation)`, like CleanRL's agents for PPO; the policy then
            writes `action`, `log_prob`, `entropy` and `value`. For a model of Stable-Baselines3, or the model's policy,
            `predict(observation, deterministic=...)` is called; the policy then writes `action`.
        deterministic: passed to `predict`.

    Raises:
        ConfigError: the agent has neither of these methods.
    """
    module = agent if isinstance(agent, nn.Module) else getattr(agent, "policy", None)
    if isinstance(module, nn.Module):
        if hasattr(module, "get_action_and_value"):
            keys = ["action", "log_prob", "entropy", "value"]
            return TensorDictModule(_ActionAndValue(module), in_keys=["observation"], out_keys=keys)
        if hasattr(module, "predict"):
            space = getattr(module, "observation_space", None)
            names = [*space.spaces] if isinstance(space, spaces.Dict) else []
            policy = _Predict(module, deterministic, names)
            return TensorDictModule(policy, in_keys=names or ["observation"], out_keys=["action"])
    raise ConfigError(
        "the agent must be a torch.nn.Module with the method get_action_and_value() or predict(), or a "
        f"Stable-Baselines3 model, but is of type {type(agent).__name__}. If you have a function that "
        "computes the action, pass it to the collector directly."
    )


class _ActionAndValue(nn.Module):
    def __init__(self, agent: nn.Module):
        super().__init__()
        self.agent = agent

    def forward(self, observation: torch.Tensor) -> Any:
        return self.agent.get_action_and_value(observation)  # type: ignore[operator]


class _Predict(nn.Module):
    def __init__(self, policy: nn.Module, deterministic: bool, names: Sequence[str]):
        super().__init__()
        self.policy = policy
        self._deterministic = deterministic
        # The names of the parts of a Dict observation; empty for others.
        self._names = names

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        arrays = [part.numpy(force=True) for part in parts]
        observation = dict(zip(self._names, arrays, strict=True)) if self._names else arrays[0]
        action, _ = self.policy.predict(observation, deterministic=self._deterministic)  # type: ignore[operator]
        return torch.as_tensor(action, device=parts[0].device)


# Its name until 0.1.
adapt = policy_from_agent
