"""What a user's own module has, for the words of `tests/matrix.py` that name one: an env, a policy, a trainer, a
logger."""

import gymnasium
import torch
from gymnasium.spaces.utils import flatdim
from torch import nn


def make_env():
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", categorical_action_encoding=True)


class Policy(nn.Module):
    """For any env: the index of the largest score if actions are discrete, otherwise the scores."""

    def __init__(self, spec):
        super().__init__()
        self.is_discrete = isinstance(spec.action_space, gymnasium.spaces.Discrete)
        self.num_dims = len(spec.observation_space.shape)
        self.scores = nn.Linear(flatdim(spec.observation_space), flatdim(spec.action_space))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        flat = observation.flatten(-self.num_dims) if self.num_dims else observation.unsqueeze(-1)
        scores = self.scores(flat.float())
        return scores.argmax(-1) if self.is_discrete else scores


class Trainer:
    """Receives all batches."""

    def train(self, collection):
        for _batch in collection:
            pass


class Logger:
    """Keeps nothing."""

    def log(self, scalars, step):
        pass

    def close(self):
        pass
