"""Processor time of one update of the built-in trainers, beside the same update written by hand, as in CleanRL's files,
and the matrix products that both need.

    python -m benchmarks.updates [--rounds 5]

The batches have the shapes of CartPole-v1 with `experiment=cartpole_ppo` and `cartpole_impala`. Each side runs in turn,
with one thread.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torch.distributions import Categorical

from benchmarks import printing
from collectx import env as envs
from collectx import policy as policies
from collectx import trainer as trainers
from collectx.config.schema.env import GymEnvConfig
from collectx.config.schema.policy import MlpPolicyConfig
from collectx.config.schema.trainer import ImpalaTrainerConfig, PpoTrainerConfig

# Envs, steps, epochs, minibatches.
_PPO = (32, 32, 5, 4)
_IMPALA = (16, 32)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    printing.say_about("benchmarks.updates", "tensordict")
    print("processor time of one update, ms: median of the rounds (min to max)")
    for name, sides in {"ppo": _ppo_sides(), "impala": _impala_sides()}.items():
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, update in sides.items():
                times[side].append(_milliseconds(update))
        for side, values in times.items():
            print(f"{name:8} {side:16} {median(values):8.2f} ({min(values):.2f} to {max(values):.2f})")
    return 0


def _milliseconds(update: Callable[[], object], seconds: float = 1.0) -> float:
    update()
    count, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        update()
        count += 1
    return 1000 * (time.process_time() - began) / count


def _batch(rows: int, steps: int) -> TensorDict:
    """Returns a batch as a sync collector delivers it."""
    generator = torch.Generator().manual_seed(0)
    size = (rows, steps)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*size, *shape, generator=generator)

    flags = {name: normal(1) > 2 for name in ("terminated", "truncated")}
    flags["done"] = flags["terminated"] | flags["truncated"]
    following = TensorDict({"observation": normal(4), "reward": normal(1).abs(), **flags}, size)
    action = torch.randint(2, size, generator=generator)
    log_prob = torch.full(size, -0.7)
    frames = {"observation": normal(4), "action": action, "action_log_prob": log_prob, "next": following}
    return TensorDict(frames, size)


def _ppo_sides() -> dict[str, Callable[[], object]]:
    rows, steps, epochs, minibatches = _PPO
    spec = envs.read_spec(GymEnvConfig(kind="gym", id="CartPole-v1", num_envs=rows))
    policy = policies.build(MlpPolicyConfig(kind="mlp"), spec, 0)
    cfg = PpoTrainerConfig(kind="ppo", num_epochs=epochs, minibatch_size=rows * steps // minibatches)
    ours = trainers.build(cfg, policy, spec, 0, torch.device("cpu"))
    batch = _batch(rows, steps)
    by_hand = HandWritten()
    products = Products(rows * steps // minibatches)
    return {
        "collectx": lambda: ours.learn(ours._transitions(batch)),
        "by hand": lambda: by_hand.ppo(batch, epochs, minibatches),
        "matrix products": lambda: [products() for _ in range(epochs * minibatches)],
    }


def _impala_sides() -> dict[str, Callable[[], object]]:
    rows, steps = _IMPALA
    spec = envs.read_spec(GymEnvConfig(kind="gym", id="CartPole-v1", num_envs=rows))
    policy = policies.build(MlpPolicyConfig(kind="mlp"), spec, 0)
    ours = trainers.build(ImpalaTrainerConfig(kind="impala"), policy, spec, 0, torch.device("cpu"))
    batch, by_hand, products = _batch(rows, steps), HandWritten(), Products(rows * steps)
    return {
        "collectx": lambda: ours.learn(ours._transitions(batch)),
        "by hand": lambda: by_hand.impala(batch),
        "matrix products": products,
    }


def _network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class HandWritten:
    """Updates of an actor and a critic as a script of one file makes them."""

    def __init__(self) -> None:
        self.actor, self.critic = _network(2), _network(1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=2.5e-4, eps=1e-5)

    def ppo(self, batch: TensorDict, epochs: int, minibatches: int) -> None:
        rows, steps = batch.shape
        observation, action = batch["observation"], batch["action"]
        reward, done = batch["next", "reward"].squeeze(-1), batch["next", "done"].squeeze(-1).float()
        with torch.no_grad():
            values = self.critic(observation).squeeze(-1)
            following = self.critic(batch["next", "observation"][:, -1]).squeeze(-1)
            advantages, last = torch.zeros_like(reward), torch.zeros(rows)
            for step in reversed(range(steps)):
                after = following if step == steps - 1 else values[:, step + 1]
                delta = reward[:, step] + 0.99 * after * (1 - done[:, step]) - values[:, step]
                last = delta + 0.99 * 0.95 * (1 - done[:, step]) * last
                advantages[:, step] = last
            returns = advantages + values
        observation, action = observation.reshape(-1, 4), action.reshape(-1)
        advantages, returns = advantages.reshape(-1), returns.reshape(-1)
        old = batch["action_log_prob"].reshape(-1)
        order = np.arange(rows * steps)
        for _ in range(epochs):
            np.random.shuffle(order)
            for index in np.split(order, minibatches):
                distribution = Categorical(logits=self.actor(observation[index]))
                ratio = (distribution.log_prob(action[index]) - old[index]).exp()
                gain = advantages[index]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                actor_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()
                critic_loss = 0.5 * ((self.critic(observation[index]).squeeze(-1) - returns[index]) ** 2).mean()
                self._step(actor_loss - 0.01 * distribution.entropy().mean() + 0.5 * critic_loss)

    def impala(self, batch: TensorDict) -> None:
        rows, steps = batch.shape
        observation, action = batch["observation"], batch["action"]
        reward, done = batch["next", "reward"].squeeze(-1), batch["next", "done"].squeeze(-1).float()
        distribution = Categorical(logits=self.actor(observation))
        log_prob, values = distribution.log_prob(action), self.critic(observation).squeeze(-1)
        with torch.no_grad():
            following = self.critic(batch["next", "observation"][:, -1]).squeeze(-1)
            after = torch.cat([values[:, 1:], following[:, None]], 1)
            ratio = (log_prob - batch["action_log_prob"]).exp().clamp(max=1.0)
            delta = ratio * (reward + 0.99 * after * (1 - done) - values)
            target, last = torch.zeros_like(values), torch.zeros(rows)
            for step in reversed(range(steps)):
                last = delta[:, step] + 0.99 * (1 - done[:, step]) * ratio[:, step] * last
                target[:, step] = values[:, step] + last
            after = torch.cat([target[:, 1:], following[:, None]], 1)
            advantage = ratio * (reward + 0.99 * after * (1 - done) - values)
        critic_loss = 0.5 * ((values - target) ** 2).mean()
        self._step(-(log_prob * advantage).mean() + critic_loss - 0.01 * distribution.entropy().mean())

    def _step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()


class Products:
    """The matrix products of one gradient step of an actor and a critic: forward, and the gradients of weights and
    inputs."""

    def __init__(self, frames: int):
        self._layers = [
            (torch.randn(frames, width), torch.randn(width, size), torch.randn(frames, size), index > 0)
            for outputs in (2, 1)
            for index, (width, size) in enumerate(((4, 64), (64, 64), (64, outputs)))
        ]
        self._out: Sequence[tuple[torch.Tensor, ...]] = [
            (torch.empty_like(gradient), torch.empty_like(weight), torch.empty_like(inputs))
            for inputs, weight, gradient, _ in self._layers
        ]

    def __call__(self) -> None:
        for (inputs, weight, gradient, has_inputs), (forward, of_weight, of_inputs) in zip(
            self._layers, self._out, strict=True
        ):
            torch.mm(inputs, weight, out=forward)
            torch.mm(inputs.t(), gradient, out=of_weight)
            if has_inputs:
                torch.mm(gradient, weight.t(), out=of_inputs)


if __name__ == "__main__":
    assert gymnasium
    sys.exit(main())
