"""`trainer.kind=ppo`: proximal policy optimisation (Schulman et al. 2017), for sync collectors.

Each batch is used for `num_epochs` passes and published after. Tensors only: no TensorDict below `train`.
"""

from __future__ import annotations

import torch

from collectx.config import PpoTrainerConfig
from collectx.trainer.actor_critic import ActorCriticTrainer
from collectx.trainer.gae import gae
from collectx.trainer.rows import Rows, flat
from collectx.trainer.values import values_of


class PpoTrainer(ActorCriticTrainer):
    """Clipped PPO with GAE."""

    _cfg: PpoTrainerConfig

    def learn(self, rows: Rows) -> dict[str, float]:
        cfg, learner = self._cfg, self._learner
        value, next_value = values_of(learner.critic, rows)
        advantage = gae(rows.reward, value, next_value, rows.done, cfg.gamma, cfg.gae_lambda)
        target = (advantage + value).flatten()
        observation, advantage = flat(rows.observation), advantage.flatten()
        action, old_log_prob = flat([rows.action, rows.log_prob])
        frames = len(advantage)
        # A last minibatch much smaller than the others would be noise: the frames are cut into equal parts.
        parts = max(1, round(frames / cfg.minibatch_size))
        sums = torch.zeros(3, device=learner.device)
        for _ in range(cfg.num_epochs):
            order = torch.randperm(frames, generator=learner.generator).to(learner.device)
            for index in order.tensor_split(parts):
                x = [tensor[index] for tensor in observation]
                log_prob, entropy = learner.policy.evaluate(x, action[index])
                gain = advantage[index]
                if cfg.normalize_advantage:
                    gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
                ratio = (log_prob - old_log_prob[index]).exp()
                clipped = ratio.clamp(1 - cfg.clip_epsilon, 1 + cfg.clip_epsilon)
                actor_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
                critic_loss = (learner.critic(x) - target[index]).square().mean()
                entropy = entropy.mean()
                learner.step(actor_loss + cfg.critic_coeff * critic_loss - cfg.entropy_coeff * entropy)
                sums += torch.stack((actor_loss, critic_loss, entropy)).detach()
        actor_mean, critic_mean, entropy_mean = (sums / (cfg.num_epochs * parts)).tolist()
        return {"actor_loss": actor_mean, "critic_loss": critic_mean, "entropy": entropy_mean}
