"""The actor-critic trainers, PPO and IMPALA: the training loop, the critic, batches as `[R, T]` tensors, the networks
and their gradients, and the losses.

`MlpNetworks` computes gradients without autograd, whose graph takes 40% of a gradient step of two small networks. It
calls the kernels that autograd would call, in the same order, so the gradients are equal bit by bit.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from collectx.batch import TRAJ_IDS, Key, as_key
from collectx.config.problem import page
from collectx.config.schema.trainer import ImpalaTrainerConfig, PpoTrainerConfig
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy.fast_call import hooked
from collectx.policy.heads import HeadGradient
from collectx.policy.stochastic import Flatten, StochasticPolicy, initialize
from collectx.random_state import single_threaded
from collectx.trainer.base import BatchCollection, LearningTrainer, check_trainable, load_moments, present_keys
from collectx.trainer.optimizer import Adam, check_finite
from collectx.trainer.returns import RewardScale, gae, vtrace

# An activation, and the function that returns the gradient of its input, given that of its output, and the output.
_Activation = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
_ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.ReLU: (torch.relu, lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0)),
}


def networks_of(policy: Any, critic: Any) -> Networks:
    """Returns the networks of a policy and a `collectx.trainer.actor_critic.Critic`."""
    is_written_out = (
        type(policy) is StochasticPolicy
        and policy.head.has_gradient
        and policy.legal is None
        and not [*policy.encode.parameters()]
        and not any(hooked(module) for module in (*policy.modules(), *critic.modules()))
        and all(_is_known(layer) for layer in (*policy.body, policy.out, *critic.body, critic.out))
    )
    return (MlpNetworks if is_written_out else Networks)(policy, critic)


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear:
        return type(layer) in _ACTIVATIONS
    return layer.bias is not None and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


class Networks:
    """Evaluates policy and critic, and computes gradients by autograd."""

    def __init__(self, policy: Any, critic: Any):
        self._policy, self._critic = policy, critic
        self._outputs: tuple[torch.Tensor, ...] = ()

    def evaluate(
        self, observation: Sequence[Any], action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the log-probability of `action`, `[B, *shape]`, the entropy, and the value of the observation, all
        `[B]` and without gradients. `observation` has a tensor `[B, *shape]` per key of the policy's
        `observation_keys`. Keeps what `backward` needs."""
        log_prob, entropy = self._policy.evaluate(observation, action)
        self._outputs = (log_prob, entropy, self._critic(observation))
        return log_prob.detach(), entropy.detach(), self._outputs[-1].detach()

    def backward(self, d_log_prob: torch.Tensor, d_entropy: float, d_value: torch.Tensor) -> None:
        """Adds the gradients of a loss to `grad` of all parameters, given its gradients with respect to the results of
        `evaluate`: `[B]`, one number that holds for each entropy, and `[B]`."""
        gradients = (d_log_prob, torch.full_like(self._outputs[1], d_entropy), d_value)
        pairs = [pair for pair in zip(self._outputs, gradients, strict=True) if pair[0].requires_grad]
        self._outputs = ()
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


class MlpNetworks(Networks):
    """Networks of linear layers, tanh and ReLU on the CPU, with the same encoder, which has no parameters. `backward`
    replaces the gradients of the step before."""

    def __init__(self, policy: Any, critic: Any):
        super().__init__(policy, critic)
        self._encode, self._head = policy.encode, policy.head
        self._actor_layers = _Layers((*policy.body, policy.out))
        self._critic_layers = _Layers((*critic.body, critic.out))
        self._head_gradient: HeadGradient

    @torch.no_grad()
    def evaluate(
        self, observation: Sequence[Any], action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self._encode(observation)
        log_prob, entropy, self._head_gradient = self._head.differentiate(self._actor_layers.forward(x), action)
        return log_prob, entropy, self._critic_layers.forward(x).squeeze(-1)

    @torch.no_grad()
    def backward(self, d_log_prob: torch.Tensor, d_entropy: float, d_value: torch.Tensor) -> None:
        self._actor_layers.backward(self._head_gradient(d_log_prob, d_entropy))
        self._critic_layers.backward(d_value.unsqueeze(-1))


class _Layers:
    """A chain of layers."""

    def __init__(self, layers: Iterable[nn.Module]):
        self._layers: list[Any] = [_ACTIVATIONS.get(type(layer), layer) for layer in layers]
        self._seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._seen = [x]
        for layer in self._layers:
            x = layer[0](x) if isinstance(layer, tuple) else nn.functional.linear(x, layer.weight, layer.bias)
            self._seen.append(x)
        return x

    def backward(self, gradient: torch.Tensor) -> None:
        """Sets the gradients of the parameters, given that of the result of `forward`."""
        for index in reversed(range(len(self._layers))):
            layer, x = self._layers[index], self._seen[index]
            if isinstance(layer, tuple):
                gradient = layer[1](gradient, self._seen[index + 1])
                continue
            layer.weight.grad, layer.bias.grad = gradient.t().mm(x), gradient.sum(0)
            if index:
                gradient = gradient.mm(layer.weight)
        self._seen = []


_ADVICE = (
    "it does not compute log-probabilities of actions. Use policy=mlp, cnn or multi, or write a module with "
    "observation_keys and evaluate(observation, action), which also writes action_log_prob. To see how: "
    f"{page('your-policy')}"
)


# The columns of the result of `ActorCriticTrainer.learn`.
_LOSSES = ("actor_loss", "critic_loss", "entropy")


class ActorCriticTrainer(LearningTrainer):
    """Updates policy and critic with every batch, by one Adam optimiser for both, then publishes the policy.
    `generator` is a CPU generator for the order of minibatches."""

    def __init__(
        self,
        cfg: PpoTrainerConfig | ImpalaTrainerConfig,
        policy: Callable | None,
        spec: EnvSpec,
        seed: int,
        device: torch.device,
    ):
        attributes = ("evaluate", "observation_keys")
        super().__init__(cfg, check_trainable(cfg, policy, attributes, _ADVICE).to(device), device)
        self.critic = Critic(self.policy, spec, seed).to(device)
        # Policy and critic may share an encoder: each parameter once.
        parameters = [*dict.fromkeys([*self.policy.parameters(), *self.critic.parameters()])]
        self._optimizer = Adam(parameters, lr=cfg.learning_rate, eps=cfg.adam_eps, fused=True)
        self.optimizers = (self._optimizer,)
        self.generator = torch.Generator().manual_seed(seed)
        self._networks = networks_of(self.policy, self.critic)
        self._scale_rewards = RewardScale(cfg.gamma) if cfg.normalize_rewards else None

    def update(self, batch: Any, collection: BatchCollection) -> dict[str, float]:
        losses, others = self.learn(self._transitions(batch))
        modules = {"policy": self.policy, "critic": self.critic}
        check_finite(self._cfg, _LOSSES, losses, modules, self._optimizer)
        learning_rate = self._optimizer.param_groups[0]["lr"]
        return dict(zip(_LOSSES, losses.mean(0).tolist(), strict=True)) | others | {"learning_rate": learning_rate}

    def _transitions(self, batch: TensorDict) -> Transitions:
        """Returns the transitions of a batch. First adds the batch to the statistics; otherwise the first batch would
        not be scaled. The ratios of probabilities include how this changes the policy, as after a gradient step."""
        transitions = Transitions.of(batch, self.policy.observation_keys, self.device)
        if self._update_statistics is not None:
            self._update_statistics([self._learners.concatenate(part) for part in transitions.observation])
        if self._scale_rewards is None:
            return transitions
        traj_ids = batch[TRAJ_IDS].reshape(transitions.done.shape)
        reward = self._scale_rewards(transitions.reward, transitions.done, traj_ids, self._learners)
        return replace(transitions, reward=reward)

    @abstractmethod
    def learn(self, batch: Transitions) -> tuple[torch.Tensor, dict[str, float]]:
        """Updates the networks with a batch; returns the `_LOSSES` of each gradient step, `[steps, 3]`, and other
        scalars about the update."""

    def step(self, d_log_prob: torch.Tensor, error: torch.Tensor, frames: float) -> None:
        """Takes one gradient step after `self._networks.evaluate`.

        Args:
            d_log_prob: the gradient of the actor's loss by each log-probability, `[B]`.
            error: the values minus their targets, `[B]`.
            frames: by which sums over frames are divided: B, or its mean over the learners.
        """
        cfg = self._cfg
        self._optimizer.zero_grad()
        d_value = error * 2 * (_float32(cfg.critic_coeff) / frames)
        self._networks.backward(d_log_prob, -_float32(cfg.entropy_coeff) / frames, d_value)
        self._optimizer.clipped_step(cfg.max_grad_norm)

    def load_critic(self, state: dict) -> None:
        """Begins with another run's critic; see `policy.init_from`."""
        self.critic.load_state_dict(state)

    def state_dict(self) -> dict:
        """Tensors and plain data only."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            **({} if self._scale_rewards is None else {"rewards": self._scale_rewards.state_dict()}),
        }

    def load_state_dict(self, state: dict) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        load_moments(self._optimizer, state["optimizer"])
        self.generator.set_state(state["generator"])
        if self._scale_rewards is not None:
            self._scale_rewards.load_state_dict(state["rewards"])


class PpoTrainer(ActorCriticTrainer):
    """`trainer.kind=ppo`: proximal policy optimisation (Schulman et al. 2017) with GAE, for sync collectors. Each batch
    is used for `num_epochs` passes, after which the weights are published.

    Logs, beside the losses, how far the update went in its last epoch: `approx_kl`, an estimate of the KL divergence of
    the new policy from the old one (Schulman 2020, "Approximating KL Divergence"), and `clip_fraction`, the share of
    frames whose ratio was clipped. `explained_variance` is the share of the variance of the returns that the critic
    explained before the update; it is left out where all returns are equal."""

    _cfg: PpoTrainerConfig

    def learn(self, batch: Transitions) -> tuple[torch.Tensor, dict[str, float]]:
        cfg = self._cfg
        with torch.no_grad():
            value = self.critic(flat(batch.observation)).view(batch.reward.shape)
        next_value = next_values(self.critic, value, batch)
        advantage = gae(batch.reward, value, next_value, batch.done, cfg.gamma, cfg.gae_lambda)
        target = (advantage + value).flatten()
        observation, advantage = flat(batch.observation), advantage.flatten()
        action, old_log_prob = flat([batch.action, batch.log_prob])
        frames = len(advantage)
        counts = [int(count) for (count,) in self._learners.gather([frames])]
        # Minibatches of equal size: a small last one would have a noisy gradient. All learners have as many.
        num_minibatches = max(1, min(round(sum(counts) / len(counts) / cfg.minibatch_size), *counts))
        sizes = [sum(len(range(i, count, num_minibatches)) for count in counts) for i in range(num_minibatches)]
        losses, last = [], []
        # Rounding makes equal returns differ.
        differ = target.std() > 1e-5 * target.abs().max()
        explained_variance = torch.where(differ, 1 - advantage.var() / target.var(), torch.nan)
        for epoch in range(cfg.num_epochs):
            order = self.order(frames).to(self.device)
            # One gather per epoch. Observations are gathered for each minibatch, as they may be large.
            parts = [tensor[order] for tensor in (action, old_log_prob, advantage, target)]
            minibatches = (tensor.tensor_split(num_minibatches) for tensor in (order, *parts))
            for size, index, acted, old, gain, value_target in zip(sizes, *minibatches, strict=True):
                x = [tensor[index] for tensor in observation]
                log_prob, entropy, value = self._networks.evaluate(x, acted)
                if cfg.normalize_advantage:
                    mean, deviation = self._learners.mean_std(gain)
                    gain = (gain - mean) / (deviation + 1e-8)
                log_ratio = log_prob - old
                ratio = log_ratio.exp()
                clipped = ratio.clamp(1 - cfg.clip_epsilon, 1 + cfg.clip_epsilon)
                objective, bound = ratio * gain, clipped * gain
                if epoch == cfg.num_epochs - 1:
                    last.append(
                        torch.stack(((log_ratio.expm1() - log_ratio).mean(), (ratio != clipped).float().mean()))
                    )
                actor_loss = -torch.minimum(objective, bound).mean()
                error = value - value_target
                # Frames with a clipped ratio have no gradient.
                share = size / len(counts)
                self.step(torch.where(objective <= bound, gain * (-1 / share), 0.0) * ratio, error, share)
                losses.append(torch.stack((actor_loss, error.square().mean(), entropy.mean())))
        update = torch.cat((torch.stack(last).mean(0), explained_variance.unsqueeze(0))).tolist()
        scalars = dict(zip(("approx_kl", "clip_fraction", "explained_variance"), update, strict=True))
        if not explained_variance.isfinite():
            del scalars["explained_variance"]
        return torch.stack(losses), scalars

    def order(self, frames: int) -> torch.Tensor:
        """Returns the order in which an epoch visits the frames of a batch, `[frames]` int64."""
        return torch.randperm(frames, generator=self.generator)


class ImpalaTrainer(ActorCriticTrainer):
    """`trainer.kind=impala`: policy gradient with V-trace advantages (Espeholt et al. 2018), a critic on V-trace
    targets, an entropy bonus, for async collectors. Takes one gradient step per batch and publishes; the workers'
    weights may be several versions old."""

    _cfg: ImpalaTrainerConfig

    def learn(self, batch: Transitions) -> tuple[torch.Tensor, dict[str, float]]:
        cfg = self._cfg
        observation = flat(batch.observation)
        log_prob, entropy, value = self._networks.evaluate(observation, flat([batch.action])[0])
        log_prob, value = log_prob.view(batch.reward.shape), value.view(batch.reward.shape)
        next_value = next_values(self.critic, value, batch)
        target, advantage = vtrace(
            log_prob - batch.log_prob,
            batch.reward,
            value,
            next_value,
            batch.done,
            cfg.gamma,
            cfg.rho_clip,
            cfg.c_clip,
        )
        error = (value - target).flatten()
        frames = sum(count for (count,) in self._learners.gather([len(error)])) / self._learners.num_learners
        self.step(advantage.flatten() * (-1 / frames), error, frames)
        return torch.stack((-(log_prob * advantage).mean(), error.square().mean(), entropy.mean())).unsqueeze(0), {}


class Critic(nn.Module):
    """The state-value function. Its architecture is the policy's, with its own weights and one output, and shares the
    policy's encoder. It is never published.

    For a user's policy, it has two tanh layers of width 64 over the flattened observation leaves at and below the
    policy's `observation_keys`, without those that the env does not write, such as a recurrent state.
    """

    def __init__(self, policy: Any, spec: EnvSpec, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]), single_threaded():
            torch.random.default_generator.manual_seed(seed)
            if isinstance(policy, StochasticPolicy):
                self.encode: nn.Module = policy.encode
                self.body: nn.Module = copy.deepcopy(policy.body)
                width = policy.num_features
            else:
                self.encode = flatten = FlatObservation(policy, spec)
                self.body = nn.Sequential(nn.Linear(flatten.num_outputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
                width = 64
            self.out = nn.Linear(width, 1)
            initialize(self.body, math.sqrt(2))
            initialize(self.out, 1.0)

    def forward(self, observation: Sequence[Any]) -> torch.Tensor:
        """Returns values `[B]` for a tensor `[B, *shape]` per key of the policy's `observation_keys`; a key above
        several leaves takes a TensorDict."""
        return self.out(self.body(self.encode(observation))).squeeze(-1)


class FlatObservation(Flatten):
    """Flattens the observation leaves at and below the `observation_keys` of a user's policy, except those that the env
    does not write, such as a recurrent state."""

    def __init__(self, policy: Any, spec: EnvSpec):
        keys = [*map(as_key, policy.observation_keys)]
        parts = [
            (i, key, leaf) for i, key in enumerate(keys) for leaf in spec.observation if leaf.key[: len(key)] == key
        ]
        if not parts and spec.observation:
            reads, has = (", ".join(map(".".join, each)) for each in (keys, [leaf.key for leaf in spec.observation]))
            raise ConfigError(
                f"{type(policy).__name__} reads {reads} (observation_keys), but the observation of the env has {has}. "
                "Use keys that it has."
            )
        super().__init__(spec, [leaf for _, _, leaf in parts])
        self._parts = [(i, leaf.key[len(key) :]) for i, key, leaf in parts]

    def forward(self, observation: Sequence[Any]) -> torch.Tensor:
        """Like `Flatten.forward`, for a tensor or TensorDict per key of the policy's `observation_keys`."""
        return super().forward([observation[i][path] if path else observation[i] for i, path in self._parts])


@dataclass(frozen=True, slots=True)
class Transitions:
    """The transitions of a batch: R independent rows of T consecutive frames.

    Attributes:
        observation, next_observation: a tensor `[R, T, *shape]` per key of the policy's `observation_keys`.
        action: `[R, T, *shape]`.
        log_prob, reward: `[R, T]` float32.
        terminated: `[R, T]` bool; the value of the next observation is then 0.
        done: `[R, T]` bool, terminated or truncated; the next frame then belongs to another episode.
    """

    observation: Sequence[torch.Tensor]
    next_observation: Sequence[torch.Tensor]
    action: torch.Tensor
    log_prob: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    done: torch.Tensor

    @classmethod
    def of(cls, batch: TensorDict, observation_keys: Sequence[Key], device: torch.device) -> Transitions:
        """Returns the transitions of a batch: merges all batch dimensions but the last, time. Copies only tensors that
        are on another device."""
        size = batch.batch_size
        observation_keys = present_keys(batch, observation_keys)

        def get(*key: str) -> torch.Tensor:
            value = batch.get(key)
            return value.reshape(-1, size[-1], *value.shape[len(size) :]).to(device, non_blocking=True)

        return cls(
            observation=[get(*key) for key in observation_keys],
            next_observation=[get("next", *key) for key in observation_keys],
            action=get("action"),
            log_prob=get("action_log_prob"),
            reward=get("next", "reward").squeeze(-1),
            terminated=get("next", "terminated").squeeze(-1),
            done=get("next", "done").squeeze(-1),
        )


def flat(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors `[R, T, ...]` as `[R * T, ...]`."""
    return [tensor.flatten(0, 1) for tensor in tensors]


@torch.no_grad()
def next_values(critic: Callable[..., torch.Tensor], value: torch.Tensor, batch: Transitions) -> torch.Tensor:
    """Returns the values of the next observations, `[R, T]`, given those of the observations, `[R, T]`.

    Within an episode, the next observation is the observation of the following frame. So this evaluates next
    observations only for the last frame of each row and the last frames of episodes. The next value of a terminated
    frame is 0; that of a truncated frame is the value of its true final observation (Pardo et al. 2018, "Time Limits in
    Reinforcement Learning").
    """
    is_last = batch.done.clone()
    is_last[:, -1] = True
    index = is_last.flatten().nonzero().squeeze(-1)
    next_value = torch.roll(value, -1, 1)
    next_value.view(-1)[index] = critic([tensor[index] for tensor in flat(batch.next_observation)])
    return next_value.masked_fill_(batch.terminated, 0.0)


def _float32(number: float) -> float:
    """Returns the nearest float32, which torch multiplies a float32 tensor by."""
    return float(np.float32(number))
