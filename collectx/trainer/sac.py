"""`trainer.kind=sac`: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications") from a
replay buffer, for any collector and actions in a Box.

Two critics estimate the value of an action, and the smaller estimate counts. The entropy coefficient is learned.
Entropy is measured on actions scaled to [-1, 1], so the unit of an action does not matter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import nn

from collectx.config.schema.trainer import SacTrainerConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy.stochastic import StochasticPolicy
from collectx.random_state import single_threaded
from collectx.replay import UniformSampler
from collectx.trainer.actor_critic import FlatObservation
from collectx.trainer.base import check_trainable, load_moments
from collectx.trainer.off_policy import OffPolicyTrainer
from collectx.trainer.optimizer import Adam, check_finite

_ADVICE = (
    "it does not compute squashed actions. Use policy=squashed_mlp or squashed_multi, or give your module the "
    "attributes observation_keys and rsample, as collectx.policy.squashed.SquashedPolicy has them."
)


class SacTrainer(OffPolicyTrainer):
    """Soft actor-critic. `critic` is never published. Each gradient step updates the critics, then the actor and the
    entropy coefficient, then the target critics."""

    _cfg: SacTrainerConfig
    losses = ("actor_loss", "critic_loss", "entropy", "entropy_coeff", "value")

    def __init__(self, cfg: SacTrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device):
        module: Any = check_trainable(cfg, policy, ("observation_keys", "rsample"), _ADVICE).to(device)
        super().__init__(cfg, module, UniformSampler(seed), device)
        # Without parameters; its statistics are those of the policy.
        is_ours = isinstance(module, StochasticPolicy)
        self._encode: Any = module.encode if is_ours else FlatObservation(module, spec)
        body = module.body if is_ours else [nn.Linear(1, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        self.critic = TwinCritic(body, self._encode.num_outputs, spec, seed).to(device)
        self._target = copy.deepcopy(self.critic).requires_grad_(False)
        self._critic_parameters: list[torch.Tensor] = [*self.critic.parameters()]
        dims = self.critic.num_actions
        self._target_entropy = float(-dims) if cfg.target_entropy is None else cfg.target_entropy
        self._log_alpha = torch.zeros((), device=device).requires_grad_(cfg.entropy_coeff is None)
        if cfg.entropy_coeff is not None:
            self._log_alpha.fill_(math.log(cfg.entropy_coeff))
        # The losses of actor and coefficient depend on disjoint parameters, so one optimiser serves both.
        groups = ([*module.parameters(), self._log_alpha], self._critic_parameters)
        self.optimizers = tuple(Adam(each, lr=cfg.learning_rate, eps=cfg.adam_eps, fused=True) for each in groups)

    def state_dict(self) -> dict:
        return {
            **super().state_dict(),
            "critic": self.critic.state_dict(),
            "target": self._target.state_dict(),
            "log_alpha": self._log_alpha.detach().clone(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.critic.load_state_dict(state["critic"])
        self._target.load_state_dict(state["target"])
        if self._cfg.entropy_coeff is None:
            self._log_alpha.data.copy_(state["log_alpha"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            load_moments(optimizer, saved)

    def load_critic(self, state: dict) -> None:
        """Begins with another run's critics; see `policy.init_from`."""
        for module in (self.critic, self._target):
            module.load_state_dict(state)

    def learn(self, sample: TensorDict, steps: int) -> torch.Tensor:
        cfg, (actor_optimizer, critic_optimizer) = self._cfg, self.optimizers
        rows = []
        for frames in sample.to(self.device).split(cfg.batch_size):
            observation, alpha = self.parts(frames), self._log_alpha.detach().exp()
            features = self._encode(observation)
            expected = self._soft_target(frames, alpha)
            values = self.critic(features, frames["action"])
            critic_loss = 0.5 * (values - expected).square().mean(-1).sum()
            critic_optimizer.minimize(critic_loss, cfg.max_grad_norm)
            action, log_prob = self._act(observation)
            # The critics stay as they are in this half of the step.
            self.critic.requires_grad_(False)
            actor_loss = (alpha * log_prob - self.critic(features, action).amin(0)).mean()
            entropy = -log_prob.detach().mean()
            coefficient_loss = self._log_alpha.exp() * (entropy - self._target_entropy)
            actor_optimizer.minimize(actor_loss + coefficient_loss, cfg.max_grad_norm)
            self.critic.requires_grad_(True)
            with torch.no_grad():
                torch._foreach_lerp_([*self._target.parameters()], self._critic_parameters, cfg.target_rate)
            rows.append(torch.stack((actor_loss, critic_loss, entropy, alpha, values.mean())).detach())
        losses = torch.stack(rows)
        check_finite(cfg, self.losses, losses, {"policy": self.policy, "critic": self.critic}, critic_optimizer)
        return losses.sum(0)

    @torch.no_grad()
    def _soft_target(self, frames: TensorDict, alpha: torch.Tensor) -> torch.Tensor:
        """Returns `[B]`: the n-step return plus the discounted soft value of the next observation, by the target
        critics and an action that the policy samples."""
        following = self.parts(frames, "next")
        action, log_prob = self._act(following)
        value = self._target(self._encode(following), action).amin(0) - alpha * log_prob
        return frames["return"] + frames["discount"] * value

    def _act(self, observation: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns sampled actions, and the log-probabilities of these actions scaled to [-1, 1]."""
        action, log_prob = self.policy.rsample(observation)
        return action, log_prob + self.critic.log_scale


class TwinCritic(nn.Module):
    """Two action-value functions, with the layers of `body` over an encoded observation, `[B, num_features]`, and the
    action scaled to [-1, 1]. Actions without bounds are not scaled. Raises `ConfigError` if the action is not a Box.

    Attributes:
        num_actions: the number of action dimensions.
        log_scale: the logarithm of the volume of the Box divided by the volume of [-1, 1].
    """

    center: torch.Tensor
    scale: torch.Tensor

    def __init__(self, body: Iterable[nn.Module], num_features: int, spec: EnvSpec, seed: int):
        super().__init__()
        space = spec.action_space
        if not isinstance(space, spaces.Box) or len(spec.action) != 1:
            raise ConfigError(
                f"trainer=sac needs a Box as action space, but the env's is {space}. Use trainer=ppo or trainer=dqn."
            )
        is_bounded = space.bounded_below & space.bounded_above
        center = np.where(is_bounded, (space.high + space.low) / 2, 0.0).reshape(-1)
        scale = np.where(is_bounded, (space.high - space.low) / 2, 1.0).reshape(-1)
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)
        self.num_actions, self.log_scale = len(scale), float(np.log(scale).sum())
        with torch.random.fork_rng(devices=[]), single_threaded():
            torch.random.default_generator.manual_seed(seed)
            self.networks = nn.ModuleList(_network(body, num_features + len(scale)) for _ in range(2))

    def forward(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Returns values `[2, B]` for features `[B, num_features]` and the env's actions `[B, *shape]`."""
        scaled = (action.reshape(len(action), -1).to(torch.float32) - self.center) / self.scale
        x = torch.cat((features, scaled), -1)
        return torch.cat([network(x) for network in self.networks], -1).T


def _network(layers: Iterable[nn.Module], width: int) -> nn.Sequential:
    """Returns new layers like `layers`, for an input of another width and with one output."""
    copies: list[Any] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            copies.append(nn.Linear(width, layer.out_features))
        else:
            copies.append(copy.deepcopy(layer))
            for part in copies[-1].modules():
                getattr(part, "reset_parameters", lambda: None)()
        width = copies[-1](torch.zeros(1, width)).shape[-1]
    return nn.Sequential(*copies, nn.Linear(width, 1))
