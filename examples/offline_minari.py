r"""An offline run: behaviour cloning from a Minari data set, as a trainer of a run.

    export MINARI_DATASETS_PATH=$PWD/datasets
    collectx run env=pendulum policy=custom policy.target=offline_minari:Demonstrator \
        trainer=record trainer.format=minari trainer.dir=datasets/pendulum/swing-v0 \
        collector.total_frames=32_000 hydra.run.dir=demonstrations
    collectx run env=pendulum trainer=custom trainer.target=offline_minari:Cloning \
        trainer.kwargs.data=pendulum/swing-v0 collector.frames_per_batch=3200 \
        collector.total_frames=64_000 collector.exploration_type=deterministic \
        hydra.run.dir=clone

Type this in the folder of this file; it needs the `record` extra. The first run records
episodes of `Demonstrator`. The second run learns from the recorded frames alone: its
env only measures the return of the clone, after every 200 gradient steps. For other
data, leave the first run out and name any data set of `minari list remote`, with its
env.
"""

import minari
import numpy as np
import torch
from tensordict import TensorDict


class Demonstrator(torch.nn.Module):
    """Swings a pendulum up and balances it, with noise: observations [..., 3] to
    torques [..., 1]."""

    def forward(self, observation):
        cos, sin, speed = observation.unbind(-1)
        angle = torch.atan2(sin, cos)
        missing = 15 * (1 - cos) - speed.square() / 2  # to the energy when upright
        balance, swing = -10 * angle - 3 * speed, missing * speed.sign()
        torque = torch.where(angle.abs() < 0.6, balance, swing)
        return (torque + torch.randn_like(torque)).clamp(-2, 2).unsqueeze(-1)


def load(name):
    """The frames of a Minari data set, [frames]; downloads it if it is not on this
    machine."""
    episodes = minari.load_dataset(name, download=True)
    observation = np.concatenate([each.observations[:-1] for each in episodes])
    action = np.concatenate([each.actions for each in episodes])
    return TensorDict(
        {"observation": observation, "action": action}, [episodes.total_steps]
    )


class Cloning:
    """Makes the recorded actions more likely, in `steps` gradient steps after each
    batch of the env."""

    def __init__(self, policy, data, steps=200, batch_size=256, learning_rate=1e-3):
        self.policy, self.frames = policy, load(data)
        self.steps, self.batch_size = steps, batch_size
        self.optimizer = torch.optim.Adam(policy.parameters(), learning_rate)

    def train(self, collection):
        for _ in collection:
            for _ in range(self.steps):
                index = torch.randint(len(self.frames), (self.batch_size,))
                sample = self.frames[index]
                observations = [sample["observation"]]
                log_prob, _ = self.policy.evaluate(observations, sample["action"])
                loss = -log_prob.mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            collection.publish(self.policy)
            collection.log(loss=loss.item())

    def state_dict(self):
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
