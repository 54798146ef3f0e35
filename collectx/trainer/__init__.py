"""Trainers consume batches and publish weights, in the trainer's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from collectx.config.registry import implementation
from collectx.config.schema.trainer import TrainerConfig

if TYPE_CHECKING:
    import torch

    from collectx.env.base import EnvSpec
    from collectx.trainer.base import Trainer


def build(cfg: TrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device) -> Trainer:
    """Builds the trainer that `cfg` describes.

    Args:
        policy: the trainer's copy, whose weights it publishes; None for random actions.
        seed: seeds the critic's weights and the order of minibatches.
        device: where the trainer computes; a trainer that learns moves `policy` there.

    Raises:
        ConfigError: the configuration is wrong, or this trainer cannot train this policy in this env.
    """
    return implementation("trainer", cfg.kind)(cfg, policy, spec, seed, device)
