"""Options of the group `trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from collectx.config.schema.fields import above, at_least, within


@dataclass
class TrainerConfig:
    kind: str = MISSING


@dataclass
class MeterTrainerConfig(TrainerConfig):
    digest: bool = MISSING


@dataclass
class PpoTrainerConfig(TrainerConfig):
    digest: bool = MISSING
    learning_rate: float = above(0)
    anneal: bool = MISSING
    gamma: float = within(0, 1)
    gae_lambda: float = within(0, 1)
    num_epochs: int = at_least(1)
    minibatch_size: int = at_least(1)
    clip_epsilon: float = above(0)
    entropy_coeff: float = at_least(0)
    critic_coeff: float = at_least(0)
    max_grad_norm: float = above(0)
    normalize_advantage: bool = MISSING
    target_return: float | None = MISSING


@dataclass
class ImpalaTrainerConfig(TrainerConfig):
    digest: bool = MISSING
    learning_rate: float = above(0)
    anneal: bool = MISSING
    gamma: float = within(0, 1)
    rho_clip: float = above(0)
    c_clip: float = above(0)
    entropy_coeff: float = at_least(0)
    critic_coeff: float = at_least(0)
    max_grad_norm: float = above(0)
    target_return: float | None = MISSING


@dataclass
class DqnTrainerConfig(TrainerConfig):
    digest: bool | None = MISSING
    learning_rate: float = above(0)
    anneal: bool = MISSING
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
    target_return: float | None = MISSING


@dataclass
class CustomTrainerConfig(TrainerConfig):
    digest: bool | None = MISSING
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
