"""SAC on Pendulum: workers write to a replay buffer, this process samples and learns.

    python examples/sac_replay_buffer.py --frames 10000 --workers 2 --seed 0

Reaches a mean return above -300 (a random policy has about -1200) in a minute or two on
two cores. Batches do not pass through this process: the workers write them to shared
memory, so the loop receives None. To adapt it, change `make_env` and the sizes of the
networks.
"""

import argparse
import copy
from collections import deque

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from collectx import MultiAsyncCollector, ReplayBuffer

FRAMES_PER_BATCH, RANDOM_FRAMES = 50, 1000
BATCH_SIZE, GAMMA, TAU, LEARNING_RATE = 128, 0.99, 0.005, 1e-3
OBSERVATION, ACTION, SCALE, WIDTH = 3, 1, 2.0, 128  # actions are in [-SCALE, SCALE]


def make_env():
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("Pendulum-v1"))


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, outputs),
    )


class Actor(nn.Module):
    """A Gaussian, squashed by tanh: observations [..., 3] to actions [..., 1] and their
    log-probabilities [...]."""

    def __init__(self):
        super().__init__()
        self.net = mlp(OBSERVATION, 2 * ACTION)

    def sample(self, observation):
        mean, log_std = self.net(observation).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        squashed = raw.tanh()
        log_prob = normal.log_prob(raw) - (SCALE * (1 - squashed.square()) + 1e-6).log()
        return SCALE * squashed, log_prob.sum(-1)

    def forward(self, observation):
        """The actions alone: this is what workers call."""
        return self.sample(observation)[0]


class Critic(nn.Module):
    """Two Q-functions: [..., 3], [..., 1] to [2, ...]."""

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(mlp(OBSERVATION + ACTION, 1) for _ in range(2))

    def forward(self, observation, action):
        inputs = torch.cat((observation, action), -1)
        return torch.stack([net(inputs).squeeze(-1) for net in self.nets])


class Learner:
    """Networks, optimizers and one gradient step of SAC (Haarnoja et al. 2018) with a
    learned temperature."""

    def __init__(self):
        self.actor, self.critic = Actor(), Critic()
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        parameters = self.actor.parameters(), self.critic.parameters(), [self.log_alpha]
        self.optimizers = [torch.optim.Adam(each, LEARNING_RATE) for each in parameters]

    def step(self, sample):
        """Takes one gradient step on [BATCH_SIZE] frames; returns both losses."""
        following, alpha = sample["next"], self.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = self.actor.sample(following["observation"])
            value = self.target(following["observation"], action).amin(0)
            # The value after a truncated episode counts, as `next.observation` is its
            # true last observation.
            goes_on = ~following["terminated"].squeeze(-1)
            goal = following["reward"].squeeze(-1)
            goal = goal + GAMMA * goes_on * (value - alpha * log_prob)
        value = self.critic(sample["observation"], sample["action"])
        critic_loss = (value - goal).square().sum(0).mean()
        self.minimize(1, critic_loss)
        action, log_prob = self.actor.sample(sample["observation"])
        value = self.critic(sample["observation"], action).amin(0)
        actor_loss = (alpha * log_prob - value).mean()
        self.minimize(0, actor_loss)
        self.minimize(2, -(self.log_alpha.exp() * (log_prob.detach() - ACTION).mean()))
        with torch.no_grad():
            for slow, fast in zip(
                self.target.parameters(), self.critic.parameters(), strict=True
            ):
                slow.lerp_(fast, TAU)
        return actor_loss.item(), critic_loss.item()

    def minimize(self, index, loss):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        self.optimizers[index].step()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    learner, buffer = Learner(), ReplayBuffer(1_000_000, batch_size=BATCH_SIZE)
    collector = MultiAsyncCollector(
        [make_env] * args.workers,
        TensorDictModule(learner.actor, in_keys=["observation"], out_keys=["action"]),
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=args.frames,
        init_random_frames=RANDOM_FRAMES,
        num_threads=1,  # of torch here: more do not help networks of this size
        replay_buffer=buffer,
        info_keys=["episode"],
        seed=args.seed,
    )
    returns, seen, losses = deque(maxlen=20), 0, (0.0, 0.0)
    with collector:
        # `_` is None: a worker has written FRAMES_PER_BATCH frames.
        for number, _ in enumerate(collector):
            new = buffer[seen:]  # the frames that were written since the last time
            seen += len(new)
            ended = new["next", "done"].squeeze(-1)
            returns += new["next", "info", "episode", "r"][ended].tolist()
            if seen < RANDOM_FRAMES:
                continue
            for _ in range(FRAMES_PER_BATCH):  # one gradient step per frame
                losses = learner.step(buffer.sample())
            collector.update_policy_weights_()
            if number % 20 == 0:
                mean = sum(returns) / max(1, len(returns))
                line = f"{seen:8} frames  return {mean:8.1f}"
                print(f"{line}  actor loss {losses[0]:8.2f}  critic {losses[1]:8.2f}")
    mean = sum(returns) / len(returns)
    print(f"{seen} frames, mean return of the last {len(returns)} episodes: {mean:.1f}")


if __name__ == "__main__":
    main()
