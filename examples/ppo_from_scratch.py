"""PPO written out: two worker processes step CartPole, this process learns.

    python examples/ppo_from_scratch.py --frames 153600 --workers 2 --seed 0

Reaches a mean return above 400 (of at most 500) in half a minute on two cores. To adapt
it: change `make_env` and the two networks; everything else is the algorithm (Schulman
et al. 2017).
"""

import argparse
from collections import deque

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical

from collectx import MultiSyncCollector

FRAMES_PER_BATCH, ENVS_PER_WORKER = 1024, 8
GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCHES, LEARNING_RATE = 0.98, 0.8, 0.2, 5, 4, 2e-3


def make_env():
    # With this wrapper `info` has the return of each episode that ends; see `info_keys`
    # below.
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


class Actor(nn.Module):
    """Observations [..., 4] to sampled actions and their log-probabilities, [...]."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
        )

    def forward(self, observation):
        distribution = Categorical(logits=self.net(observation))
        action = distribution.sample()
        return action, distribution.log_prob(action)

    def evaluate(self, observation, action):
        """Log-probabilities of given actions, and the entropy."""
        distribution = Categorical(logits=self.net(observation))
        return distribution.log_prob(action), distribution.entropy()


def advantages(reward, value, next_value, terminated, done):
    """Generalised advantage estimation. All arguments are [rows, time]: each row has
    consecutive frames.

    A terminated episode has no value after its end; a truncated one has that of its
    last observation. The sum stops at both.
    """
    delta = reward + GAMMA * next_value * ~terminated - value
    advantage, total = torch.zeros_like(delta), torch.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        total = delta[:, t] + GAMMA * LAMBDA * ~done[:, t] * total
        advantage[:, t] = total
    return advantage


def learn(batch, actor, critic, optimizer):
    """Updates both networks from one batch, [workers, envs, time]; returns the last
    losses."""
    batch = batch.flatten(0, 1)
    taken = batch["observation"], batch["action"], batch["log_prob"]
    following = batch["next"]
    with torch.no_grad():
        value = critic(batch["observation"]).squeeze(-1)
        next_value = critic(following["observation"]).squeeze(-1)
        # Flags and rewards have a last dimension of size 1.
        reward = following["reward"].squeeze(-1)
        ends = following["terminated"].squeeze(-1), following["done"].squeeze(-1)
        advantage = advantages(reward, value, next_value, *ends)
    frames = [x.flatten(0, 1) for x in (*taken, advantage, advantage + value)]
    for _ in range(EPOCHS):
        for index in torch.randperm(len(frames[0])).chunk(MINIBATCHES):
            observation, action, old_log_prob, advantage, target = (
                x[index] for x in frames
            )
            # To explore more, add `- 0.01 * _entropy.mean()` to the loss.
            log_prob, _entropy = actor.evaluate(observation, action)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (log_prob - old_log_prob).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            actor_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            critic_loss = (critic(observation).squeeze(-1) - target).square().mean()
            optimizer.zero_grad()
            (actor_loss + 0.5 * critic_loss).backward()
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            optimizer.step()
    return actor_loss.item(), critic_loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=153_600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    actor = Actor()
    critic = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(
        [*actor.parameters(), *critic.parameters()], LEARNING_RATE, eps=1e-5
    )
    collector = MultiSyncCollector(
        [make_env] * args.workers,
        # What the policy reads and writes. All that it writes is in the batch.
        TensorDictModule(
            actor, in_keys=["observation"], out_keys=["action", "log_prob"]
        ),
        num_envs=ENVS_PER_WORKER,
        num_threads=1,  # of torch here: more do not help networks of this size
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=args.frames,
        info_keys=["episode"],
        seed=args.seed,
    )
    returns, frames = deque([0.0], maxlen=100), 0
    with collector:
        for number, batch in enumerate(collector):
            frames += batch.numel()
            left = max(0.0, 1 - frames / args.frames)
            optimizer.param_groups[0]["lr"] = left * LEARNING_RATE
            actor_loss, critic_loss = learn(batch, actor, critic, optimizer)
            collector.update_policy_weights_()  # the next batch is collected with them
            ended = batch["next", "done"].squeeze(-1)
            returns.extend(batch["next", "info", "episode", "r"][ended].tolist())
            mean = sum(returns) / len(returns)
            if number % 10 == 0:
                losses = f"actor loss {actor_loss:7.4f}  critic {critic_loss:7.3f}"
                print(f"{frames:8} frames  return {mean:6.1f}  {losses}")
    print(
        f"{frames} frames, mean return of the last {len(returns)} episodes: {mean:.1f}"
    )


if __name__ == "__main__":
    main()
