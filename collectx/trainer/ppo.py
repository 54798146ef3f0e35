"""`trainer.kind=ppo`: proximal policy optimisation (Schulman et al. 2017), for sync collectors.

Each batch is used for `num_epochs` passes, after which the weights are published.
"""

from __future__ import annotations

import torch

from collectx.config.schema.trainer import PpoTrainerConfig
from collectx.trainer.actor_critic import ActorCriticTrainer, Transitions, flat, state_values
from collectx.trainer.returns import gae


class PpoTrainer(ActorCriticTrainer):
    """Clipped PPO with GAE."""

    _cfg: PpoTrainerConfig

    def learn(self, batch: Transitions) -> torch.Tensor:
        cfg = self._cfg
        value, next_value = state_values(self.critic, batch)
        advantage = gae(batch.reward, value, next_value, batch.done, cfg.gamma, cfg.gae_lambda)
        target = (advantage + value).flatten()
        observation, advantage = flat(batch.observation), advantage.flatten()
        action, old_log_prob = flat([batch.action, batch.log_prob])
        frames = len(advantage)
        # Minibatches of equal size: a small last one would have a noisy gradient.
        num_minibatches = max(1, round(frames / cfg.minibatch_size))
        losses = []
        for _ in range(cfg.num_epochs):
            order = torch.randperm(frames, generator=self.generator).to(self.device)
            for index in order.tensor_split(num_minibatches):
                x = [tensor[index] for tensor in observation]
                log_prob, entropy = self.policy.evaluate(x, action[index])
                gain = advantage[index]
                if cfg.normalize_advantage:
                    gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
                ratio = (log_prob - old_log_prob[index]).exp()
                clipped = ratio.clamp(1 - cfg.clip_epsilon, 1 + cfg.clip_epsilon)
                actor_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
                critic_loss = (self.critic(x) - target[index]).square().mean()
                entropy = entropy.mean()
                self.step(actor_loss + cfg.critic_coeff * critic_loss - cfg.entropy_coeff * entropy)
                losses.append(torch.stack((actor_loss, critic_loss, entropy)).detach())
        return torch.stack(losses)
