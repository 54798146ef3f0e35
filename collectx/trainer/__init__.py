"""Trainers consume batches and publish weights. They run in the trainer's process."""

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
    """Returns the trainer of `cfg`. Raises `ConfigError` if the configuration is wrong, or this trainer cannot train
    this policy in this env.

    Args:
        policy: the policy to train and publish; None for random actions.
        seed: seed of the critic's weights and of the order of minibatches.
        device: the device on which the trainer computes; a trainer that learns moves `policy` there.
    """
    return implementation("trainer", cfg.kind)(cfg, policy, spec, seed, device)
