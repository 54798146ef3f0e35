"""A trainer that depends on all that a checkpoint holds. Imported by runs."""

import os
import random
import signal
from typing import ClassVar

import numpy as np
import torch

from collectx import ReplayBuffer
from collectx.replay import UniformSampler


class DrawingTrainer:
    """Learns from samples of a replay buffer, and from draws of the process's three generators, which it logs. Gets
    SIGTERM within its batch `stop_at`, which counts from 1, also over a resume."""

    def __init__(self, policy, stop_at=0):
        self.policy, self._stop_at, self._batches = policy, stop_at, 0
        self._optimizer = torch.optim.Adam(policy.parameters(), 0.01)
        self.replay_buffers = {"replay": ReplayBuffer(1000, sampler=UniformSampler(0))}

    def train(self, collection):
        for batch in collection:
            self._batches += 1
            if self._batches == self._stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            self.replay_buffers["replay"].extend(batch)
            sample = self.replay_buffers["replay"].sample(8)
            drawn = {"torch": torch.rand(()).item(), "numpy": np.random.random(), "python": random.random()}
            loss = sum(part.square().sum() for part in self.policy.parameters()) * sum(drawn.values())
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            collection.publish(self.policy)
            sampled = sample["observation"].double().sum().item()
            collection.log(loss=loss.item(), sampled=sampled, stored=len(self.replay_buffers["replay"]), **drawn)

    def state_dict(self):
        return {"policy": self.policy.state_dict(), "adam": self._optimizer.state_dict(), "batches": self._batches}

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["adam"])
        self._batches = state["batches"]


class ForgetfulTrainer:
    """The same without `state_dict`. `began` are the weights that each of them began with."""

    began: ClassVar[list] = []

    def __init__(self, policy, stop_at=0):
        self.began.append({name: value.clone() for name, value in policy.state_dict().items()})
        self._trainer = DrawingTrainer(policy, stop_at)

    def train(self, collection):
        self._trainer.train(collection)
