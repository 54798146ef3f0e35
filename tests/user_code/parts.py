"""What a user's own module has, for the words of `tests/matrix.py` that name one: an env, a policy, a trainer, a
logger."""

import torch
from torch import nn


def make_env():
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", categorical_action_encoding=True)


class Policy(nn.Module):
    """The index of the largest score."""

    def __init__(self, spec):
        super().__init__()
        self.scores = nn.Linear(spec.observation_space.shape[0], int(spec.action_space.n))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.scores(observation).argmax(-1)


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
