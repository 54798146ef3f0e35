"""A collection without collector: gymnasium envs stepped in the test's own process, with policy lag on demand."""

from __future__ import annotations

import copy
from collections import deque

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx.batch import Leaf, batch_leaves, to_tensordict
from collectx.env.base import EnvSpec
from collectx.policy import ExplorationType, make_actor


def cartpole_spec(num_envs: int) -> EnvSpec:
    box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    observation = (Leaf(("observation",), (4,), torch.float32),)
    return EnvSpec(num_envs, observation, (Leaf(("action",), (), torch.int64),), box, spaces.Discrete(2))


class InProcess:
    """`collectx.trainer.base.Collection` over CartPole-v1. The envs act with weights `lag` batches old."""

    def __init__(self, policy, spec: EnvSpec, steps: int, total_frames: int, seed: int, lag: int = 0):
        self.total_frames, self.frames, self.num_episodes = total_frames, 0, 0
        self.losses: list[dict] = []
        self._returns: deque[float] = deque(maxlen=100)
        self._spec, self._steps = spec, steps
        self._envs = [gymnasium.make("CartPole-v1") for _ in range(spec.num_envs)]
        self._now = [env.reset(seed=1000 * seed + e)[0] for e, env in enumerate(self._envs)]
        self._sums = [0.0] * spec.num_envs
        self._acting = copy.deepcopy(policy)
        self._pending = deque([copy.deepcopy(policy.state_dict()) for _ in range(lag)])
        self._actor = make_actor(self._acting, spec, torch.device("cpu"), ExplorationType.RANDOM)
        self.versions = 0
        torch.manual_seed(seed)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def publish(self, policy) -> int:
        self._pending.append(copy.deepcopy(policy.state_dict()))
        self._acting.load_state_dict(self._pending.popleft())
        self.versions += 1
        return self.versions

    def log(self, **scalars: float) -> None:
        self.losses.append(scalars)

    def __iter__(self):
        while self.frames < self.total_frames:
            self.frames += self._steps * self._spec.num_envs
            yield self._collect()

    def _collect(self):
        rows, steps = self._spec.num_envs, self._steps
        leaves = batch_leaves(self._spec.observation, self._actor.leaves)
        out = {leaf.key: torch.zeros((rows, steps, *leaf.shape), dtype=leaf.dtype) for leaf in leaves}
        arrays = {key: tensor.numpy() for key, tensor in out.items()}
        for t in range(steps):
            now = np.stack(self._now)
            arrays["observation",][:, t] = now
            with torch.inference_mode():
                acted = self._actor.act([torch.from_numpy(now)])
            for leaf, value in zip(self._actor.leaves, acted, strict=True):
                arrays[leaf.key][:, t] = value.numpy()
            for e, env in enumerate(self._envs):
                observation, reward, terminated, truncated, _ = env.step(int(acted[0][e]))
                arrays["next", "observation"][e, t] = observation
                arrays["next", "reward"][e, t] = reward
                arrays["next", "terminated"][e, t] = terminated
                arrays["next", "truncated"][e, t] = truncated
                arrays["next", "done"][e, t] = terminated or truncated
                self._sums[e] += float(reward)
                if terminated or truncated:
                    self._returns.append(self._sums[e])
                    self.num_episodes += 1
                    self._sums[e] = 0.0
                    observation, _ = env.reset()
                self._now[e] = observation
        if rows == 1:
            return to_tensordict({key: tensor[0] for key, tensor in out.items()}, [steps])
        return to_tensordict(out, [rows, steps])


@pytest.fixture
def in_process():
    return InProcess


@pytest.fixture
def spec_of():
    return cartpole_spec
