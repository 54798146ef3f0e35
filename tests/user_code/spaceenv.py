"""An env whose reward tells which frame it is, over any spaces, and its policy. At the top of a module, so that
processes find it."""

import functools

import gymnasium
import torch
from tensordict.nn import TensorDictModule

from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves

# A reward is exact in float32: (env * _EPISODES + episode) * _STEPS + step.
_ENVS, _EPISODES, _STEPS = 1009, 200, 20


def read(reward):
    """Env, episode and step of a frame; all count from 1 but the env."""
    code = int(reward)
    return code // _STEPS // _EPISODES, code // _STEPS % _EPISODES, code % _STEPS


# The actions that this process's envs were given, by the reward of their frame.
TAKEN: dict[int, object] = {}


class SpaceEnv(gymnasium.Env):
    """Observes a sample of its space that only env, episode and step decide (`sample`). Odd episodes are terminated
    after `length` steps, even ones truncated. Refuses actions that its space does not contain."""

    def __init__(self, observation_space, action_space, length):
        self.observation_space, self.action_space, self.length = observation_space, action_space, length
        self.env = self.episode = self.step_number = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.env, self.episode = seed % _ENVS, 0
        self.episode += 1
        self.step_number = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        self.step_number += 1
        reward = (self.env * _EPISODES + self.episode) * _STEPS + self.step_number
        TAKEN[reward] = action
        ended, odd = self.step_number == self.length, self.episode % 2 == 1
        return self._observe(), reward, ended and odd, ended and not odd, {}

    def _observe(self):
        return sample(self.observation_space, self.env, self.episode, self.step_number)


def sample(space, env, episode, step):
    space.seed((env * _EPISODES + episode) * _STEPS + step)
    return space.sample()


class Constant(torch.nn.Module):
    """One legal action, leaf by leaf, for any observation, and a one to tell that it has acted. The first leaf of one
    env's observation has `num_dims` dimensions."""

    def __init__(self, space, num_dims):
        super().__init__()
        space.seed(0)
        self.num_dims = num_dims
        self.values = SpaceLeaves(space, ("action",)).flatten(space.sample())

    def forward(self, *observation):
        size = observation[0].shape[: observation[0].ndim - self.num_dims]
        actions = [torch.as_tensor(value).expand(size + torch.as_tensor(value).shape) for value in self.values]
        return (*actions, torch.ones(size))


def constant_policy(observation_space, action_space):
    seen = ObservationLeaves(observation_space).leaves
    writes = [leaf.key for leaf in SpaceLeaves(action_space, ("action",)).leaves]
    return TensorDictModule(Constant(action_space, len(seen[0].shape)), [leaf.key for leaf in seen], [*writes, "acted"])


def make_env(observation_space, action_space, length, rows, autoreset):
    """One env, or `rows` of them with that `autoreset` mode."""
    one = functools.partial(SpaceEnv, observation_space, action_space, length)
    if autoreset is None:
        return one()
    mode = gymnasium.vector.AutoresetMode(autoreset)
    return gymnasium.vector.SyncVectorEnv([one] * rows, autoreset_mode=mode)
