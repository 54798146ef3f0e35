"""PPO on eight CartPole-v1 without a library, as CleanRL's files: the frames are of a `Collector`, or of a loop over a
`SyncVectorEnv`. All other lines are the same.
"""

from collections.abc import Iterator
from functools import partial

import gymnasium
import numpy as np
import torch
from torch import nn

SIDES = ("collectx", "SyncVectorEnv")
NUM_ENVS, NUM_STEPS = 8, 128
FRAMES_PER_BATCH, TOTAL_FRAMES = NUM_ENVS * NUM_STEPS, 102_400
EPOCHS, NUM_MINIBATCHES = 4, 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.actor = _network(1, 1.0), _network(2, 0.01)

    def get_value(self, observation):
        return self.critic(observation)

    def get_action_and_value(self, observation, action=None):
        choice = torch.distributions.Categorical(logits=self.actor(observation))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), self.critic(observation)


def _network(num_outputs: int, gain: float) -> nn.Module:
    layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, num_outputs)]
    for layer, each in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, each)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def train(side: str, seed: int) -> list[float]:
    """Returns the mean return of the episodes that ended in each batch."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    batches = _by_collectx(agent, seed) if side == "collectx" else _by_vector_env(agent, seed)
    returns, running = [], np.zeros(NUM_ENVS)
    for number, (observation, action, log_prob, reward, done, value, last_value) in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - number * FRAMES_PER_BATCH / TOTAL_FRAMES)
        advantage, following = torch.zeros_like(reward), torch.zeros(NUM_ENVS)
        for step in reversed(range(NUM_STEPS)):
            goes_on = 1 - done[step]
            next_value = last_value if step == NUM_STEPS - 1 else value[step + 1]
            error = reward[step] + GAMMA * next_value * goes_on - value[step]
            advantage[step] = following = error + GAMMA * LAMBDA * goes_on * following
        _learn(agent, optimizer, observation, action, log_prob, advantage, advantage + value)
        ended = []
        for rewards, dones in zip(reward.numpy(), done.numpy().astype(bool), strict=True):
            running += rewards
            ended += running[dones].tolist()
            running[dones] = 0
        returns.append(float(np.mean(ended)) if ended else float("nan"))
    return returns


def _by_vector_env(agent: Agent, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * NUM_ENVS, autoreset_mode=mode)
    size = (NUM_STEPS, NUM_ENVS)
    observation, action = torch.zeros(*size, 4), torch.zeros(size, dtype=torch.int64)
    log_prob, reward, done, value = (torch.zeros(size) for _ in range(4))
    following = torch.from_numpy(envs.reset(seed=seed)[0])
    for _ in range(TOTAL_FRAMES // FRAMES_PER_BATCH):
        for step in range(NUM_STEPS):
            observation[step] = following
            with torch.no_grad():
                action[step], log_prob[step], _, values = agent.get_action_and_value(following)
            value[step] = values.flatten()
            following, rewards, terminated, truncated, _ = envs.step(action[step].numpy())
            following = torch.from_numpy(following)
            reward[step], done[step] = torch.from_numpy(rewards), torch.from_numpy(terminated | truncated)
        with torch.no_grad():
            last_value = agent.get_value(following).flatten()
        yield observation, action, log_prob, reward, done, value, last_value
    envs.close()


def _by_collectx(agent: Agent, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    from collectx import Collector, adapt

    make = partial(gymnasium.make, "CartPole-v1")
    frames = {"frames_per_batch": FRAMES_PER_BATCH, "total_frames": TOTAL_FRAMES}
    with Collector(make, adapt(agent), num_envs=NUM_ENVS, seed=seed, **frames) as collector:
        for batch in collector:
            batch = batch.transpose(0, 1)
            following = batch["next"]
            with torch.no_grad():
                last_value = agent.get_value(following["observation"][-1]).flatten()
            numbers = (following["reward"], following["done"].float(), batch["value"])
            reward, done, value = (each.squeeze(-1) for each in numbers)
            yield batch["observation"], batch["action"], batch["log_prob"], reward, done, value, last_value


def _learn(agent, optimizer, *frames):
    observation, action, log_prob, advantage, target = (each.flatten(0, 1) for each in frames)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(action)).chunk(NUM_MINIBATCHES):
            _, now, entropy, value = agent.get_action_and_value(observation[chosen], action[chosen])
            gains = advantage[chosen]
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            ratio = (now - log_prob[chosen]).exp()
            loss = -torch.min(gains * ratio, gains * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            loss = loss - 0.01 * entropy.mean() + 0.25 * (value.flatten() - target[chosen]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
