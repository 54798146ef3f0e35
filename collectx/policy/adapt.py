"""Converts agents of CleanRL and Stable-Baselines3 to policies. Imports neither library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from torch import nn

from collectx.errors import ConfigError


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
