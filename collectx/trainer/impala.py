"""`trainer.kind=impala`: an actor-critic with V-trace (Espeholt et al. 2018), for async collectors.

One gradient step per batch, published at once; the workers' weights may be several versions behind.
"""

from __future__ import annotations

import torch

from collectx.config import ImpalaTrainerConfig
from collectx.trainer.actor_critic import ActorCriticTrainer
from collectx.trainer.rows import Rows, flat
from collectx.trainer.values import values_of
from collectx.trainer.vtrace import vtrace


class ImpalaTrainer(ActorCriticTrainer):
    """Policy gradient with V-trace advantages, a critic on V-trace targets, an entropy bonus."""

    _cfg: ImpalaTrainerConfig

    def learn(self, rows: Rows) -> dict[str, float]:
        cfg, learner = self._cfg, self._learner
        observation = flat(rows.observation)
        log_prob, entropy = learner.policy.evaluate(observation, flat([rows.action])[0])
        value, next_value = values_of(learner.critic, rows)
        log_prob, entropy = log_prob.view(rows.reward.shape), entropy.mean()
        target, advantage = vtrace(
            log_prob.detach() - rows.log_prob,
            rows.reward,
            value,
            next_value,
            rows.done,
            cfg.gamma,
            cfg.rho_clip,
            cfg.c_clip,
        )
        actor_loss = -(log_prob * advantage).mean()
        critic_loss = (learner.critic(observation) - target.flatten()).square().mean()
        learner.step(actor_loss + cfg.critic_coeff * critic_loss - cfg.entropy_coeff * entropy)
        losses = torch.stack((actor_loss, critic_loss, entropy)).detach().tolist()
        return dict(zip(("actor_loss", "critic_loss", "entropy"), losses, strict=True))
