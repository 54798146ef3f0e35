"""CartPole, one env or several, and policies for it, as a user of the library passes them."""

import os
import typing
from functools import partial

import gymnasium
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical


def cartpole(**kwargs):
    return gymnasium.make("CartPole-v1", **kwargs)


def cartpoles(num_envs=3, mode="SAME_STEP", **kwargs):
    """A vector env with that mode of autoreset."""
    return SyncVectorEnv([partial(cartpole, **kwargs)] * num_envs, autoreset_mode=AutoresetMode[mode])


def processes(num_envs):
    """A vector env whose processes collectx knows nothing of."""
    return AsyncVectorEnv([cartpole] * num_envs)


class Unseen(gymnasium.Env):
    """An env without `render`."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


def with_pid():
    """CartPole that tells in which process it is."""
    env = cartpole()
    env.pid = os.getpid()
    return env


def with_statistics():
    """CartPole whose infos have the return and the length of an ended episode."""
    return gymnasium.wrappers.RecordEpisodeStatistics(cartpole())


class Argmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, observation):
        return self.layer(observation).argmax(-1)


class Drawing(nn.Module):
    """Draws actions, which no graph can."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, observation):
        return Categorical(logits=self.net(observation), validate_args=True).sample()


def towards(observation):
    """Pushes to where the cart is. Refuses zeros, which CartPole does not observe."""
    assert observation.any(-1).all()
    return observation[..., 0].gt(0).long()


class Constant(nn.Module):
    """Its action is its weight, 0 or 1."""

    def __init__(self, action=0.0):
        super().__init__()
        self.action = nn.Parameter(torch.tensor(action))

    def forward(self, observation):
        return self.action.long().expand(observation.shape[:-1])


class Alternating(nn.Module):
    initial_state: typing.ClassVar = {"turn": torch.zeros(1)}

    def forward(self, observation, turn):
        return turn.squeeze(-1).long(), 1 - turn


def alternating():
    """A recurrent policy: moves left and right in turn, left first."""
    return TensorDictModule(Alternating(), ["observation", "turn"], ["action", ("next", "turn")])
