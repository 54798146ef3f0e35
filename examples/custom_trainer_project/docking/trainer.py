"""The trainer: a class with `train(collection)`.

With the two functions for its state, its runs can be resumed.
"""

import torch
from torch import nn


class A2C:
    """Advantage actor-critic with one-batch returns.

    Args:
        policy: as `docking.policy.make_policy` returns it.
        spec: the env's spaces.
        learning_rate, gamma: from `trainer.kwargs`.
    """

    def __init__(self, policy, spec, learning_rate, gamma):
        inputs = spec.observation_space.shape[0]
        self.policy, self._gamma = policy, gamma
        self.critic = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(
            [*policy.parameters(), *self.critic.parameters()], learning_rate
        )

    def train(self, collection):
        for batch in collection:  # a TensorDict, [workers, envs, time]
            actor_loss, critic_loss = self.learn(batch.flatten(0, 1))
            # The next batch is collected with these weights.
            collection.publish(self.policy)
            # In metrics.jsonl and the display.
            collection.log(actor_loss=actor_loss, critic_loss=critic_loss)

    def learn(self, rows):
        """Takes one gradient step; `rows` is [rows, time]. Returns the losses of actor
        and critic."""
        following, value = rows["next"], self.critic(rows["observation"]).squeeze(-1)
        with torch.no_grad():
            # Discounted rewards up to the end of the episode or the batch, then the
            # value of what comes after.
            reward, terminated, done = (
                following[key].squeeze(-1) for key in ("reward", "terminated", "done")
            )
            after = self.critic(following["observation"]).squeeze(-1) * ~terminated
            target, total = torch.zeros_like(reward), after[:, -1]
            for t in reversed(range(reward.shape[1])):
                total = torch.where(done[:, t], after[:, t], total)
                total = target[:, t] = reward[:, t] + self._gamma * total
            advantage = target - value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        distribution = self.policy.module.distribution(rows["observation"])
        log_prob = distribution.log_prob(rows["raw"]).sum(-1)
        actor_loss = -(log_prob * advantage).mean()
        critic_loss = (value - target).square().mean()
        self.optimizer.zero_grad()
        (actor_loss + 0.5 * critic_loss).backward()
        self.optimizer.step()
        return actor_loss.item(), critic_loss.item()

    def state_dict(self):
        """Of tensors and plain data; checkpoints have it."""
        parts = {
            "policy": self.policy,
            "critic": self.critic,
            "optimizer": self.optimizer,
        }
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state):
        """Restores what `state_dict` returned."""
        for name in state:
            getattr(self, name).load_state_dict(state[name])
