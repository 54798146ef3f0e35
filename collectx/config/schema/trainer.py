"""Options of the group `trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.fields import Section, above, at_least, within


@dataclass(kw_only=True)
class TrainerConfig(Section):
    kind: str


@dataclass(kw_only=True)
class MeterTrainerConfig(TrainerConfig):
    digest: bool


@dataclass(kw_only=True)
class PpoTrainerConfig(TrainerConfig):
    digest: bool
    learning_rate: float = above(0)
    anneal: bool
    gamma: float = within(0, 1)
    gae_lambda: float = within(0, 1)
    num_epochs: int = at_least(1)
    minibatch_size: int = at_least(1)
    clip_epsilon: float = above(0)
    entropy_coeff: float = at_least(0)
    critic_coeff: float = at_least(0)
    max_grad_norm: float = above(0)
    normalize_advantage: bool
    target_return: float | None


@dataclass(kw_only=True)
class ImpalaTrainerConfig(TrainerConfig):
    digest: bool
    learning_rate: float = above(0)
    anneal: bool
    gamma: float = within(0, 1)
    rho_clip: float = above(0)
    c_clip: float = above(0)
    entropy_coeff: float = at_least(0)
    critic_coeff: float = at_least(0)
    max_grad_norm: float = above(0)
    target_return: float | None


@dataclass(kw_only=True)
class DqnTrainerConfig(TrainerConfig):
    digest: bool | None
    learning_rate: float = above(0)
    anneal: bool
    gamma: float = within(0, 1)
    num_steps: int = at_least(1)
    buffer_frames: int = at_least(1)
    warmup_frames: int = at_least(0)
    batch_size: int = at_least(1)
    updates_per_frame: float = above(0)
    target_rate: float = within(0, 1)
    epsilon_start: float = within(0, 1)
    epsilon_end: float = within(0, 1)
    epsilon_frames: int = at_least(0)
    priority_alpha: float | None = at_least(0)
    priority_beta: float = at_least(0)
    max_grad_norm: float = above(0)
    target_return: float | None


@dataclass(kw_only=True)
class CustomTrainerConfig(TrainerConfig):
    digest: bool | None
    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)
