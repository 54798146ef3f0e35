"""Trainers consume batches and publish weights, in the trainer's process.

The module of a kind is imported when that kind is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from collectx.batch import REWARD
from collectx.config import (
    KINDS,
    CustomTrainerConfig,
    DqnTrainerConfig,
    ImpalaTrainerConfig,
    MeterTrainerConfig,
    PpoTrainerConfig,
    TrainerConfig,
)
from collectx.errors import ConfigError

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
    if isinstance(cfg, (PpoTrainerConfig, ImpalaTrainerConfig, DqnTrainerConfig)) and spec.rewards != (REWARD,):
        rewards = ", ".join(f"{'.'.join(leaf.key)} {list(leaf.shape)} {leaf.dtype}" for leaf in spec.rewards)
        raise ConfigError(
            [
                f"trainer.kind={cfg.kind}: the env gives {rewards}, but the trainer learns from one reward [1] "
                "torch.float32: reduce it with a transform, such as TorchRL's LineariseRewards or DoubleToFloat, or "
                "use trainer=custom."
            ]
        )
    if isinstance(cfg, MeterTrainerConfig):
        from collectx.trainer.base import MeterTrainer

        return MeterTrainer()
    if isinstance(cfg, (PpoTrainerConfig, ImpalaTrainerConfig)):
        from collectx.trainer.impala import ImpalaTrainer
        from collectx.trainer.ppo import PpoTrainer

        trainer = PpoTrainer if isinstance(cfg, PpoTrainerConfig) else ImpalaTrainer
        return trainer(cfg, _check_actor(cfg, policy), spec, seed, device)
    if isinstance(cfg, DqnTrainerConfig):
        from collectx.trainer.dqn import DqnTrainer

        return DqnTrainer(cfg, _check_q_network(cfg, policy), seed, device)
    if isinstance(cfg, CustomTrainerConfig):
        from collectx.trainer.custom import build as build_custom

        return build_custom(cfg, policy, spec, seed, device)
    raise ConfigError([f"trainer.kind={cfg.kind} is not one of {', '.join(KINDS['trainer'])}."])


def _check_actor(cfg: TrainerConfig, policy: Callable | None) -> Callable:
    if policy is not None and hasattr(policy, "evaluate") and hasattr(policy, "observation_keys"):
        return policy
    raise ConfigError(
        [
            f"trainer.kind={cfg.kind} cannot train {_name(policy)}: it needs log-probabilities of actions. Use "
            "policy=mlp or policy=cnn, or give your module observation_keys and evaluate(observation, action), as "
            "collectx.policy.stochastic.StochasticPolicy has them, and let it write action_log_prob."
        ]
    )


def _check_q_network(cfg: TrainerConfig, policy: Callable | None) -> Callable:
    if policy is not None and all(hasattr(policy, name) for name in ("observation_keys", "epsilon", "index")):
        return policy
    raise ConfigError(
        [
            f"trainer.kind={cfg.kind} cannot train {_name(policy)}: it needs the values of actions. Use policy=q_mlp "
            "or policy=q_cnn, or give your module observation_keys, epsilon, index and forward, as "
            "collectx.policy.q.QPolicy has them."
        ]
    )


def _name(policy: Callable | None) -> str:
    return "policy.kind=random" if policy is None else f"a policy of type {type(policy).__name__}"
