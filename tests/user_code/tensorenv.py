"""A vector env that returns tensors on a device, as simulators on a GPU do: the frames of the counting env."""

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from collectx.env.counting import _MIX, episode_length


class TensorCountingEnv(VectorEnv):
    """See `collectx/env/counting.py`. Resets by itself; changes the actions that it gets.

    Args:
        final: the key of the final observations in `info`; None: it has none.
        nan_step: the reward of this step of env 1 is NaN.
    """

    def __init__(self, num_envs=3, device="cpu", length=4, size=5, final="final_obs", nan_step=-1):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.single_observation_space = spaces.Box(-(2**62), 2**62, (size,), np.int64)
        self.single_action_space = spaces.Discrete(2)
        self._final, self._nan_step = final, nan_step
        self._index = torch.arange(num_envs, device=device)
        self._length = episode_length(self._index, length)
        self._mix = torch.tensor(_MIX, device=device)
        self._filler = 7 * torch.arange(size - 3, device=device)
        self._episode, self._step = torch.zeros(2, num_envs, dtype=torch.int64, device=device)

    def reset(self, *, seed=None, options=None):
        self._episode.zero_()
        self._step.zero_()
        return self._observation(), {}

    def step(self, actions):
        assert actions.device.type == self.device.type
        actions.fill_(-1)
        self._step = self._step + 1
        final, reward = self._observation(), self._step.float()
        reward[1:2] = torch.where(self._step[1:2] == self._nan_step, torch.nan, reward[1:2])
        ended = self._step >= self._length
        self._episode = self._episode + ended
        self._step = self._step * ~ended
        info = {} if self._final is None else {self._final: final}
        return self._observation(), reward, ended, torch.zeros_like(ended), info

    def _observation(self):
        head = torch.stack([self._index, self._episode, self._step], -1)
        # No GPU multiplies matrices of integers.
        return torch.cat([head, (head * self._mix).sum(-1, keepdim=True) + self._filler], -1)

    def close(self, **kwargs):
        pass


class TensorMaskedEnv(VectorEnv):
    """Allows some of five actions in each step, in tensors on a device, and raises an error at any other action."""

    def __init__(self, num_envs=3, device="cpu", length=7):
        self.num_envs, self.device, self._length = num_envs, torch.device(device), length
        seen, mask = spaces.Box(-1, 1, (3,)), spaces.Box(0, 1, (5,), np.int8)
        self.single_observation_space = spaces.Dict({"action_mask": mask, "observation": seen})
        self.single_action_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        self._steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._draws = torch.Generator(self.device).manual_seed(0 if seed is None else seed)
        return self._observation(), {}

    def step(self, actions):
        assert self._mask.gather(-1, actions[:, None]).all(), "an illegal action"
        self._steps = self._steps + 1
        ended = self._steps >= self._length
        self._steps = self._steps * ~ended
        final = self._observation()
        return self._observation(), actions.float(), ended, torch.zeros_like(ended), {"final_obs": final}

    def _observation(self):
        numbers = torch.rand(self.num_envs, 8, generator=self._draws, device=self.device)
        mask = numbers[:, :5] < 0.3
        mask[:, 2] |= ~mask.any(-1)
        self._mask = mask
        return {"action_mask": mask.to(torch.int8), "observation": numbers[:, 5:]}

    def close(self, **kwargs):
        pass
