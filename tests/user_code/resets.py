"""Envs that observe their resets: how many there were, and the last seed."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl import envs
from torchrl.data import Categorical, Composite, Unbounded


class Resets(gymnasium.Env):
    """Episodes of 3 steps."""

    observation_space = spaces.Box(0, 2**31, (2,), np.int64)
    action_space = spaces.Discrete(2)
    count = seed = 0

    def reset(self, *, seed=None, options=None):
        self.count += 1
        self.seed = self.seed if seed is None else seed
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        return self._observe(), 0.0, self._steps == 3, False, {}

    def _observe(self):
        return np.array([self.count, self.seed])


class PlainResets(envs.EnvBase):
    """The same without Gymnasium. Refuses the seed 0."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((2,), dtype=torch.int64))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))
        self.count = self.last_seed = 0

    def _set_seed(self, seed):
        assert seed >= 1
        self.last_seed = seed

    def _reset(self, tensordict, **kwargs):
        self.count += 1
        self._steps = 0
        return TensorDict(self._observe(), [])

    def _step(self, tensordict):
        self._steps += 1
        done = torch.tensor([self._steps == 3])
        return TensorDict({**self._observe(), "reward": torch.zeros(1), "done": done}, [])

    def _observe(self):
        return {"observation": torch.tensor([self.count, self.last_seed])}


def wrapped():
    return envs.GymWrapper(Resets(), categorical_action_encoding=True)


def counted():
    return envs.TransformedEnv(wrapped(), envs.StepCounter())


def scaled():
    """Returns an env with a transform for which the wrapper's own `_step` is called."""
    return envs.TransformedEnv(wrapped(), envs.RewardScaling(0, 1))
