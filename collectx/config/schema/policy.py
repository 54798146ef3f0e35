"""Options of the group `policy`."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.fields import Section, above, at_least, one_of


@dataclass(kw_only=True)
class PolicyConfig(Section):
    kind: str


@dataclass(kw_only=True)
class MlpPolicyConfig(PolicyConfig):
    hidden_sizes: list[int] = at_least(1)
    activation: str = one_of("tanh", "relu", "silu", "gelu", "elu")


@dataclass(kw_only=True)
class CnnPolicyConfig(PolicyConfig):
    channels: list[int] = at_least(1)
    kernel_sizes: list[int] = at_least(1)
    strides: list[int] = at_least(1)
    hidden_size: int = at_least(1)
    scale: float = above(0)


@dataclass(kw_only=True)
class CustomPolicyConfig(PolicyConfig):
    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)
