r"""An offline run: behaviour cloning from a Minari data set, as a trainer of `collectx run`.

    export MINARI_DATASETS_PATH=$PWD/datasets
    collectx run env=pendulum policy=custom policy.target=offline_minari:Demonstrator trainer=record \
        trainer.format=minari trainer.dir=datasets/pendulum/swing-v0 collector.total_frames=32_000
    collectx run env=pendulum trainer=custom trainer.target=offline_minari:Cloning \
        trainer.kwargs.data=pendulum/swing-v0 collector.frames_per_batch=3200 collector.total_frames=64_000 \
        collector.exploration_type=deterministic

Type this in the folder of this file. The first run records a policy that swings a pendulum up, but with noise. The
second one learns from the data set alone; its env only measures the return, once per batch. You can use any data set
that `minari list` shows, if its observations and actions are those of your env.
"""

import math

import minari
import numpy as np
import torch
from tensordict import TensorDict

from collectx import ReplayBuffer


class Demonstrator(torch.nn.Module):
    """Swings the pendulum up by its energy, and balances it there; with noise. [..., 3] to torques [..., 1]."""

    def forward(self, observation):
        cos, sin, speed = observation.unbind(-1)
        angle = torch.atan2(sin, cos)
        missing = 15 * (1 - cos) - speed.square() / 2  # of the energy of the upright pendulum
        torque = torch.where(angle.abs() < 0.6, -10 * angle - 3 * speed, missing * speed.sign())
        return (torque + torch.randn_like(torque)).clamp(-2, 2).unsqueeze(-1)


def load(name):
    """The frames of a Minari data set, [frames]; downloads it if it is not on this machine."""
    episodes = minari.load_dataset(name, download=True)
    return TensorDict(
        {
            "observation": np.concatenate([episode.observations[:-1] for episode in episodes]),
            "action": np.concatenate([episode.actions for episode in episodes]),
        },
        [episodes.total_steps],
    )


class Cloning:
    """Makes the recorded actions more likely; takes `steps` gradient steps after each batch of the env."""

    def __init__(self, policy, data, steps=200, batch_size=256, learning_rate=1e-3):
        frames = load(data)
        self.policy, self.steps = policy, steps
        self.buffer = ReplayBuffer(len(frames), batch_size=batch_size)
        self.buffer.extend(frames)
        self.optimizer = torch.optim.Adam(policy.parameters(), learning_rate)

    def train(self, collection):
        for _ in collection:
            for _ in range(self.steps):
                sample = self.buffer.sample()
                log_prob, _ = self.policy.evaluate([sample["observation"]], sample["action"])
                loss = -log_prob.mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            collection.publish(self.policy)
            collection.log(loss=loss.item())

    def state_dict(self):
        return {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
