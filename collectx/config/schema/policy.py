"""Options of the group `policy`."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from collectx.config.schema.fields import above, at_least, one_of


@dataclass
class PolicyConfig:
    kind: str = MISSING


@dataclass
class RandomPolicyConfig(PolicyConfig):
    pass


@dataclass
class MlpPolicyConfig(PolicyConfig):
    hidden_sizes: list[int] = at_least(1)
    activation: str = one_of("tanh", "relu", "silu", "gelu", "elu")


@dataclass
class CnnPolicyConfig(PolicyConfig):
    channels: list[int] = at_least(1)
    kernel_sizes: list[int] = at_least(1)
    strides: list[int] = at_least(1)
    hidden_size: int = at_least(1)
    scale: float = above(0)


@dataclass
class QMlpPolicyConfig(MlpPolicyConfig):
    pass


@dataclass
class QCnnPolicyConfig(CnnPolicyConfig):
    pass


@dataclass
class CustomPolicyConfig(PolicyConfig):
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
