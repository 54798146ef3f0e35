"""`trainer.kind=custom`: the user's own trainer, found by its import path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from collectx.config import CustomTrainerConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy.custom import locate
from collectx.trainer.base import Trainer


def build(cfg: CustomTrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device) -> Trainer:
    """Calls `target` with `policy`, `spec`, `seed` and `device`, as far as it takes them, and with `kwargs`. A policy
    that is a module is moved to `device`, where batches lie.

    Raises:
        ConfigError: nothing is found at `target`, or what it returns has no `train`.
    """
    target = locate("trainer.target", cfg.target)
    if isinstance(policy, nn.Module):
        policy.to(device)
    given: dict[str, Any] = {"policy": policy, "spec": spec, "seed": seed, "device": device}
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(target).parameters
    except ValueError:  # a builtin without a signature
        parameters = {}
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    trainer = target(**{**given, **cfg.kwargs})
    if not callable(getattr(trainer, "train", None)):
        raise ConfigError(
            [f"trainer.target={cfg.target} gave a {type(trainer).__name__}, which has no train(collection)."]
        )
    return trainer
