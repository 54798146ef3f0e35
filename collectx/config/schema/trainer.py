"""Options of the group `trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.fields import Section, above, at_least, kept, one_of, within

# The formats of data sets, and the packages that each needs.
DATA_PACKAGES: dict[str, tuple[str, ...]] = {
    "memmap": (),
    "parquet": ("pyarrow",),
    "minari": ("pyarrow", "minari"),
    "lerobot": ("pyarrow",),
}


@dataclass(kw_only=True)
class TrainerConfig(Section):
    """Options of every trainer. `digest`: whether the batches are hashed."""

    kind: str = kept()
    digest: bool | None


# Number of the last finished episodes whose mean return a run reports.
RETURN_WINDOW = 100


@dataclass(kw_only=True)
class LearningTrainerConfig(TrainerConfig):
    """Options of the built-in trainers that learn."""

    learning_rate: float = above(0, finite=True)
    adam_eps: float = above(0, finite=True)
    anneal: bool
    gamma: float = within(0, 1)
    max_grad_norm: float = above(0)
    target_return: float | None
    check_finite: bool


@dataclass(kw_only=True)
class PpoTrainerConfig(LearningTrainerConfig):
    gae_lambda: float = within(0, 1)
    num_epochs: int = at_least(1)
    minibatch_size: int = at_least(1)
    clip_epsilon: float = above(0)
    entropy_coeff: float = at_least(0, finite=True)
    critic_coeff: float = at_least(0, finite=True)
    normalize_advantage: bool


@dataclass(kw_only=True)
class ImpalaTrainerConfig(LearningTrainerConfig):
    rho_clip: float = above(0)
    c_clip: float = above(0)
    entropy_coeff: float = at_least(0, finite=True)
    critic_coeff: float = at_least(0, finite=True)


@dataclass(kw_only=True)
class DqnTrainerConfig(LearningTrainerConfig):
    num_steps: int = at_least(1)
    buffer_frames: int = at_least(1)
    warmup_frames: int = at_least(0)
    batch_size: int = at_least(1)
    updates_per_frame: float = above(0, finite=True)
    target_rate: float = within(0, 1)
    epsilon_start: float = within(0, 1)
    epsilon_end: float = within(0, 1)
    epsilon_frames: int = at_least(0)
    priority_alpha: float | None = at_least(0, finite=True)
    priority_beta: float = at_least(0, finite=True)


@dataclass(kw_only=True)
class RecordTrainerConfig(TrainerConfig):
    format: str = kept(one_of(*DATA_PACKAGES))
    dir: str | None = kept()
    flush_every_frames: int = at_least(1)
    partial_episodes: bool
    fps: int = at_least(1)
    task: str


@dataclass(kw_only=True)
class CustomTrainerConfig(TrainerConfig):
    target: str = kept()
    kwargs: dict[str, Any] = field(default_factory=dict)
