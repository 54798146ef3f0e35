"""`trainer.kind=dqn`: double deep Q-learning (van Hasselt et al. 2016) from a replay buffer, for any collector.

Q-learning is off-policy, so sync and async collectors are equally suitable. The current epsilon is published with the
weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict

from collectx.config.schema.trainer import DqnTrainerConfig
from collectx.env.base import EnvSpec
from collectx.replay import PrioritizedSampler, UniformSampler
from collectx.trainer.base import BatchCollection, check_trainable, load_moments
from collectx.trainer.off_policy import OffPolicyTrainer
from collectx.trainer.optimizer import Adam, check_finite

_ADVICE = (
    "it does not compute action values. Use policy=q_mlp, q_cnn or q_multi, or give your module the attributes "
    "observation_keys, epsilon, index and forward, as collectx.policy.q.QPolicy has them."
)


class DqnTrainer(OffPolicyTrainer):
    """Q-learning with a slowly updated target network and a Huber loss."""

    _cfg: DqnTrainerConfig
    losses = ("loss", "value")

    def __init__(self, cfg: DqnTrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device):
        attributes = ("observation_keys", "epsilon", "index")
        module: Any = check_trainable(cfg, policy, attributes, _ADVICE).to(device)
        self._target = copy.deepcopy(module).requires_grad_(False)
        self._parameters: list[torch.Tensor] = [*module.parameters()]
        self._optimizer = Adam(self._parameters, lr=cfg.learning_rate, eps=cfg.adam_eps, fused=True)
        self.optimizers = (self._optimizer,)
        if cfg.priority_alpha is None:
            sampler: Any = UniformSampler(seed)
        else:
            sampler = PrioritizedSampler(cfg.priority_alpha, cfg.priority_beta, seed=seed)
        self._is_prioritized = cfg.priority_alpha is not None
        super().__init__(cfg, module, sampler, device)
        module.epsilon.fill_(cfg.epsilon_start)

    def state_dict(self) -> dict:
        state = super().state_dict()
        return {**state, "target": self._target.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self._target.load_state_dict(state["target"])
        load_moments(self._optimizer, state["optimizer"])

    def statistics_changed(self) -> None:
        # Both networks normalise alike.
        for buffer, newest in zip(self._target.buffers(), self.policy.buffers(), strict=True):
            buffer.copy_(newest)

    def begin_batch(self, collection: BatchCollection) -> dict[str, float]:
        """Sets epsilon for the current frame."""
        cfg = self._cfg
        progress = min(1.0, collection.frames / cfg.epsilon_frames) if cfg.epsilon_frames else 1.0
        self.policy.epsilon.fill_(cfg.epsilon_start + progress * (cfg.epsilon_end - cfg.epsilon_start))
        return {"epsilon": self.policy.epsilon.item()}

    def learn(self, sample: TensorDict, steps: int) -> torch.Tensor:
        """See the base class. The targets of all steps are computed once."""
        cfg, policy = self._cfg, self.policy
        frames = sample.to(self.device)
        observation = [part.split(cfg.batch_size) for part in self.parts(frames)]
        column = policy.index(frames["action"]).unsqueeze(-1).split(cfg.batch_size)
        target = self._td_target(frames)
        errors, rows = [], []
        weight = frames["priority_weight"].split(cfg.batch_size) if self._is_prioritized else None
        for i, expected in enumerate(target.split(cfg.batch_size)):
            value = policy([part[i] for part in observation]).gather(-1, column[i]).squeeze(-1)
            distance = F.smooth_l1_loss(value, expected, reduction="none")
            loss = (distance if weight is None else distance * weight[i]).mean()
            self._optimizer.minimize(loss, cfg.max_grad_norm)
            value = value.detach()
            errors.append((value - expected).abs())
            rows.append(torch.stack((loss.detach(), value.mean())))
        losses = torch.stack(rows)
        check_finite(cfg, self.losses, losses, {"policy": policy}, self._optimizer)
        if self._is_prioritized:
            self._buffer.update_priority(sample["index"], torch.cat(errors))
        with torch.no_grad():
            # Has the effect of `steps` updates by `target_rate`.
            rate = 1 - (1 - cfg.target_rate) ** steps
            torch._foreach_lerp_([*self._target.parameters()], self._parameters, rate)
        return losses.sum(0)

    @torch.no_grad()
    def _td_target(self, frames: TensorDict) -> torch.Tensor:
        """Returns the double-DQN target `[N]`: the n-step return plus the discounted value, by the target network, of
        the policy's best action in the next observation."""
        next_observation = self.parts(frames, "next")
        best = self.policy(next_observation).argmax(-1, keepdim=True)
        return frames["return"] + frames["discount"] * self._target(next_observation).gather(-1, best).squeeze(-1)
