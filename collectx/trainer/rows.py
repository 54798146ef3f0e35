"""A batch as the learning trainers take it: `[rows, time]` tensors. Must not know where batches come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict

from collectx.batch import Key
from collectx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rows:
    """Frames in R rows of T steps; rows are independent, time runs along the second dimension.

    Attributes:
        observation, next_observation: one `[R, T, *shape]` per observation leaf.
        action: `[R, T, *shape]`. log_prob, reward: `[R, T]` float32.
        terminated: `[R, T]` bool: the next observation is worth nothing.
        done: `[R, T]` bool: terminated or truncated; the next frame is of another episode.
    """

    observation: Sequence[torch.Tensor]
    next_observation: Sequence[torch.Tensor]
    action: torch.Tensor
    log_prob: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    done: torch.Tensor

    @classmethod
    def of(cls, batch: TensorDict, observation_keys: Sequence[Key], device: torch.device) -> Rows:
        """The rows of a batch of any leading dimensions, the last being time. Copies only what lies elsewhere.

        Raises:
            ConfigError: the workers wrote no log-probabilities.
        """
        size = batch.batch_size

        def take(*key: str) -> torch.Tensor:
            value = batch.get(key)
            return value.reshape(-1, size[-1], *value.shape[len(size) :]).to(device, non_blocking=True)

        if batch.get("action_log_prob", None) is None:
            raise ConfigError(
                [
                    "this trainer needs action_log_prob in its batches, written only where actions are sampled: use "
                    "collector.exploration_type=random."
                ]
            )
        return cls(
            observation=[take(*key) for key in observation_keys],
            next_observation=[take("next", *key) for key in observation_keys],
            action=take("action"),
            log_prob=take("action_log_prob"),
            reward=take("next", "reward").squeeze(-1),
            terminated=take("next", "terminated").squeeze(-1),
            done=take("next", "done").squeeze(-1),
        )


def flat(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`[R, T, ...]` to `[R * T, ...]`."""
    return [tensor.flatten(0, 1) for tensor in tensors]
