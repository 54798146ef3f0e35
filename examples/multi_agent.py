"""Several agents in one env: independent PPO with shared weights, on the env below.

    python examples/multi_agent.py --frames 102400 --workers 2 --seed 0

The agents' tensors are in a group: ("agents", "observation") [..., agents, 6],
("agents", "reward") [..., agents]. Each agent walks to its own goal on a square without
bumping into others. The sum of rewards of an episode rises from about -14 to above 70
within a minute on two cores. An env of TorchRL with groups works in the same way. To
adapt it, change `Squares` and the networks.
"""

import argparse
from collections import deque

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical

from collectx import MultiSyncCollector

AGENTS, STEPS, SIZE = 3, 32, 5
FRAMES_PER_BATCH, ENVS_PER_WORKER = 1024, 16
GAMMA, LAMBDA, CLIP, ENTROPY = 0.95, 0.9, 0.2, 0.01
EPOCHS, MINIBATCHES, LEARNING_RATE = 4, 4, 1e-3
MOVES = np.array([(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)])


class Squares(gymnasium.Env):
    """Agents on SIZE x SIZE fields. An agent's reward is 1 on its goal, less 1 if it
    shares its field, less 0.1.

    Gymnasium has one reward, here the sum over the agents. The reward of each is a part
    of the observation, so the batch has it as ("next", "agents", "reward").
    """

    def __init__(self):
        # Of each agent: the way to its goal, and to the two other agents.
        each = {
            "observation": spaces.Box(-1, 1, (AGENTS, 2 * AGENTS)),
            "reward": spaces.Box(-2, 1, (AGENTS,)),
        }
        self.observation_space = spaces.Dict(agents=spaces.Dict(each))
        self.action_space = spaces.MultiDiscrete([len(MOVES)] * AGENTS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        fields = self.np_random.permutation(SIZE * SIZE)[: 2 * AGENTS]
        places = np.stack(np.divmod(fields, SIZE), 1)
        self._at, self._goal = places.reshape(2, AGENTS, 2)
        self._step = 0
        return self._observe(np.zeros(AGENTS)), {}

    def step(self, action):
        self._at = (self._at + MOVES[action]).clip(0, SIZE - 1)
        self._step += 1
        is_shared = (self._at[:, None] == self._at).all(-1).sum(1) > 1
        reward = 1.0 * (self._at == self._goal).all(1) - is_shared - 0.1
        return self._observe(reward), reward.sum(), False, self._step == STEPS, {}

    def _observe(self, reward):
        ways = [np.roll(self._at, -i, 0) - self._at for i in range(1, AGENTS)]
        observation = np.concatenate([self._goal - self._at, *ways], 1) / SIZE
        return {
            "agents": {
                "observation": observation.astype(np.float32),
                "reward": reward.astype(np.float32),
            }
        }


def mlp(outputs):
    return nn.Sequential(
        nn.Linear(2 * AGENTS, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )


class Actor(nn.Module):
    """The same network for every agent: [..., agents, 6] to actions and
    log-probabilities [..., agents]."""

    def __init__(self):
        super().__init__()
        self.net = mlp(len(MOVES))

    def forward(self, observation):
        distribution = Categorical(logits=self.net(observation))
        action = distribution.sample()
        return action, distribution.log_prob(action)


def learn(batch, actor, critic, optimizer):
    """PPO in which every agent's frames are rows of their own; `batch` is [workers,
    envs, time]."""
    rows = batch.flatten(0, 1)
    observation = rows["agents", "observation"]
    reward = rows["next", "agents", "reward"]
    with torch.no_grad():
        value = critic(observation).squeeze(-1)  # [rows, time, agents]
        next_value = critic(rows["next", "agents", "observation"]).squeeze(-1)
        # `done` [rows, time, 1] is that of all agents. Episodes are truncated alone:
        # the next value always counts.
        delta, carry = reward + GAMMA * next_value - value, ~rows["next", "done"]
        advantage, total = torch.zeros_like(delta), torch.zeros_like(delta[:, 0])
        for t in reversed(range(delta.shape[1])):
            total = advantage[:, t] = delta[:, t] + GAMMA * LAMBDA * carry[:, t] * total
    taken = rows["action"], rows["agents", "log_prob"]
    tensors = observation, *taken, advantage, advantage + value
    frames = [tensor.flatten(0, 2) for tensor in tensors]  # [rows * time * agents, ...]
    for _ in range(EPOCHS):
        for index in torch.randperm(len(frames[0])).chunk(MINIBATCHES):
            observation, action, old_log_prob, gain, target = (
                tensor[index] for tensor in frames
            )
            distribution = Categorical(logits=actor.net(observation))
            ratio = (distribution.log_prob(action) - old_log_prob).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            actor_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            critic_loss = (critic(observation).squeeze(-1) - target).square().mean()
            bonus = ENTROPY * distribution.entropy().mean()
            optimizer.zero_grad()
            (actor_loss + 0.5 * critic_loss - bonus).backward()
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            optimizer.step()
    return actor_loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=102_400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    actor, critic = Actor(), mlp(1)
    optimizer = torch.optim.Adam(
        [*actor.parameters(), *critic.parameters()], LEARNING_RATE
    )
    collector = MultiSyncCollector(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(Squares())] * args.workers,
        TensorDictModule(
            actor,
            in_keys=[("agents", "observation")],
            out_keys=["action", ("agents", "log_prob")],
        ),
        num_envs=ENVS_PER_WORKER,
        num_threads=1,  # of torch here: more do not help networks of this size
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=args.frames,
        info_keys=["episode"],
        seed=args.seed,
    )
    returns, frames = deque(maxlen=100), 0
    with collector:
        for number, batch in enumerate(collector):
            frames += batch.numel()
            loss = learn(batch, actor, critic, optimizer)
            collector.update_policy_weights_()
            ended = batch["next", "done"].squeeze(-1)
            returns.extend(batch["next", "info", "episode", "r"][ended].tolist())
            if number % 10 == 0:
                mean = sum(returns) / max(1, len(returns))
                print(f"{frames:8} frames  return {mean:6.1f}  actor loss {loss:7.4f}")
    mean = sum(returns) / len(returns)
    print(
        f"{frames} frames, mean return of the last {len(returns)} episodes: {mean:.1f}"
    )


if __name__ == "__main__":
    main()
