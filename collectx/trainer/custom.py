"""`trainer.kind=custom`: the user's trainer, from its import path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from collectx.config.schema.trainer import CustomTrainerConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.trainer.base import Trainer
from collectx.user_objects import call, resolve


def build(cfg: CustomTrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device) -> Trainer:
    """Returns `target(...)`, called with those of `policy`, `spec`, `seed` and `device` that it accepts, and with
    `kwargs`. First moves a policy that is a module to `device`, the device of the batches. Raises `ConfigError` if
    `target` does not exist, or its result lacks the method `train`, or that takes no argument or is a generator or a
    coroutine."""
    target = resolve(cfg.target, "trainer.target")
    if isinstance(policy, nn.Module):
        policy.to(device)
    given: dict[str, Any] = {"policy": policy, "spec": spec, "seed": seed, "device": device}
    arguments = given
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(target).parameters
    except ValueError:  # A builtin may lack a signature.
        parameters = {}
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: value for name, value in given.items() if name in parameters}
    if inspect.isfunction(target) and "collection" in {*parameters} - {*arguments, *cfg.kwargs}:
        raise ConfigError(
            f"trainer.target={cfg.target} is a function of the collection, but it must make a trainer. Write a class "
            "with a method train(self, collection)."
        )
    trainer = call(target, {**arguments, **cfg.kwargs}, "trainer.kwargs", given)
    if not callable(getattr(trainer, "train", None)):
        raise ConfigError(
            f"trainer.target={cfg.target} returned an object of type {type(trainer).__name__} without a method "
            "train(collection). Return a trainer that has one."
        )
    if not _takes_collection(trainer.train):
        raise ConfigError(
            f"trainer.target={cfg.target}: its method train must take one argument, the batches. Write def train(self, "
            "collection)."
        )
    for is_kind, word in ((inspect.isgeneratorfunction, "yield"), (inspect.iscoroutinefunction, "async")):
        if is_kind(trainer.train):
            raise ConfigError(
                f"trainer.target={cfg.target}: its method train(collection) contains `{word}`, so a call of it trains "
                f"nothing. Write it without `{word}`."
            )
    return trainer


def _takes_collection(train: Callable[..., Any]) -> bool:
    """Whether a function can be called with one positional argument; True if it does not say."""
    with suppress(ValueError):
        signature = inspect.signature(train)
        try:
            signature.bind(None)
        except TypeError:
            return False
    return True
