"""`trainer.kind=impala`: an actor-critic with V-trace (Espeholt et al. 2018), for async collectors.

Takes one gradient step per batch and publishes; the workers' weights may be several versions old.
"""

from __future__ import annotations

import torch

from collectx.config.schema.trainer import ImpalaTrainerConfig
from collectx.trainer.actor_critic import ActorCriticTrainer, Transitions, flat, state_values
from collectx.trainer.returns import vtrace


class ImpalaTrainer(ActorCriticTrainer):
    """Policy gradient with V-trace advantages, a critic on V-trace targets, an entropy bonus."""

    _cfg: ImpalaTrainerConfig

    def learn(self, batch: Transitions) -> torch.Tensor:
        cfg = self._cfg
        observation = flat(batch.observation)
        log_prob, entropy = self.policy.evaluate(observation, flat([batch.action])[0])
        value, next_value = state_values(self.critic, batch)
        log_prob, entropy = log_prob.view(batch.reward.shape), entropy.mean()
        target, advantage = vtrace(
            log_prob.detach() - batch.log_prob,
            batch.reward,
            value,
            next_value,
            batch.done,
            cfg.gamma,
            cfg.rho_clip,
            cfg.c_clip,
        )
        actor_loss = -(log_prob * advantage).mean()
        critic_loss = (self.critic(observation) - target.flatten()).square().mean()
        self.step(actor_loss + cfg.critic_coeff * critic_loss - cfg.entropy_coeff * entropy)
        return torch.stack((actor_loss, critic_loss, entropy)).detach().unsqueeze(0)
