"""Hindsight experience replay: DQN flips bits, and `post_traj` relabels trajectories.

    python examples/her_post_traj.py --frames 25600 --workers 2 --seed 0
    python examples/her_post_traj.py --no-her

Random actions almost never reach the goal, one of 4,096 states, so the rewards alone
teach nothing: with `--no-her` success stays below 2%. Hindsight adds copies of each
trajectory whose goals are states that the agent did reach, and success exceeds 95% in
half a minute on two cores. To adapt it, change `BitFlip` and `reward`.
"""

import argparse
import copy
from collections import deque

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from torch import nn

from collectx import MultiSyncCollector, ReplayBuffer

BITS, ENVS_PER_WORKER, FRAMES_PER_BATCH, LEARN_STEPS = 12, 8, 256, 64
BATCH_SIZE, GAMMA, TAU, LEARNING_RATE = 256, 0.95, 0.01, 1e-3
# Copies of a trajectory, the share of the frames in which epsilon falls, and its end.
GOALS, EXPLORATION, LEAST_EPSILON = 4, 0.5, 0.02


def reward(achieved, goal):
    """0 for a reached goal, else -1: [..., BITS] arrays or tensors to [...]."""
    return 1.0 * (achieved == goal).all(-1) - 1


class BitFlip(gymnasium.Env):
    """Each action flips one of the bits; the episode ends at the goal, or after as many
    steps as there are bits."""

    observation_space = spaces.Dict(
        {
            name: spaces.Box(0, 1, (BITS,))
            for name in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = spaces.Discrete(BITS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        bits = self.np_random.integers(0, 2, (2, BITS))
        self.bits, self.goal = bits.astype(np.float32)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.bits[action] = 1 - self.bits[action]
        self.steps += 1
        value = float(reward(self.bits, self.goal))
        return self.observe(), value, value == 0, self.steps == BITS, {}

    def observe(self):
        return {
            "observation": self.bits.copy(),
            "achieved_goal": self.bits.copy(),
            "desired_goal": self.goal.copy(),
        }


class Policy(nn.Module):
    """Epsilon-greedy over the values of the actions: observations and goals [..., BITS]
    to actions [...]."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * BITS, 256), nn.ReLU(), nn.Linear(256, BITS)
        )
        # A buffer travels to the workers with the weights.
        self.register_buffer("epsilon", torch.tensor(1.0))

    def forward(self, observation, goal):
        best = self.net(torch.cat((observation, goal), -1)).argmax(-1)
        explores = torch.rand(best.shape) < self.epsilon
        return torch.where(explores, torch.randint_like(best, BITS), best)


class Hindsight:
    """The hook `post_traj`: called in this process with each ended trajectory."""

    def __init__(self, goals):
        self.goals = goals
        self.successes = deque([False], maxlen=500)

    def __call__(self, trajectory):
        """A trajectory [time] and `goals` copies of it, [(1 + goals) * time]: all of
        this is written to the buffer."""
        self.successes.append(trajectory["next", "terminated"][-1].item())
        copies = [self.relabel(trajectory) for _ in range(self.goals)]
        return torch.cat([trajectory, *copies])

    def relabel(self, trajectory):
        """A copy in which the goal of each frame is what was reached at the end of it
        or of a random later one."""
        relabelled, time = trajectory.clone(), torch.arange(len(trajectory))
        later = time + (torch.rand(len(time)) * (len(time) - time)).long()
        following = relabelled["next"]
        achieved = following["achieved_goal"]
        relabelled["desired_goal"] = following["desired_goal"] = achieved[later]
        following["reward"] = reward(achieved, achieved[later]).unsqueeze(-1)
        following["terminated"] = following["reward"] == 0
        following["done"] = following["terminated"] | following["truncated"]
        return relabelled


def learn(net, target, optimizer, sample):
    """One step of double Q-learning from [BATCH_SIZE] frames; returns the loss."""
    following = sample["next"]
    inputs = torch.cat((sample["observation"], sample["desired_goal"]), -1)
    next_inputs = torch.cat((following["observation"], following["desired_goal"]), -1)
    value = net(inputs).gather(-1, sample["action"].unsqueeze(-1))
    with torch.no_grad():
        best = net(next_inputs).argmax(-1, keepdim=True)
        next_value = target(next_inputs).gather(-1, best)
        # The value after a truncated episode counts: its last observation is no goal.
        expected = following["reward"] + GAMMA * ~following["terminated"] * next_value
    loss = nn.functional.smooth_l1_loss(value, expected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=25_600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--her", action=flag, default=True, help="relabel trajectories")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    policy, buffer = Policy(), ReplayBuffer(200_000, batch_size=BATCH_SIZE)
    target = copy.deepcopy(policy.net).requires_grad_(False)
    optimizer = torch.optim.Adam(policy.net.parameters(), LEARNING_RATE)
    hindsight = Hindsight(GOALS if args.her else 0)
    collector = MultiSyncCollector(
        [BitFlip] * args.workers,
        TensorDictModule(
            policy, in_keys=["observation", "desired_goal"], out_keys=["action"]
        ),
        num_envs=ENVS_PER_WORKER,
        num_threads=1,  # of torch here: more do not help a network of this size
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=args.frames,
        trajs_per_batch=1,  # with a buffer: each is written as soon as it has ended
        post_traj=hindsight,
        replay_buffer=buffer,
        seed=args.seed,
    )
    frames = number = 0
    with collector:
        while collected := collector.fill():
            frames += collected
            number += 1
            last = hindsight.successes
            success = 100 * sum(last) / len(last)
            if len(buffer) < BATCH_SIZE:
                continue
            for _ in range(LEARN_STEPS):
                loss = learn(policy.net, target, optimizer, buffer.sample())
            epsilon = max(LEAST_EPSILON, 1 - frames / (EXPLORATION * args.frames))
            policy.epsilon.fill_(epsilon)
            collector.update_policy_weights_()
            if number % 10 == 0:
                line = f"{frames:8} frames  success {success:5.1f} %  loss {loss:7.4f}"
                print(f"{line}  buffer {len(buffer)} frames")
    print(f"{frames} frames, success of the last {len(last)} episodes: {success:.1f} %")


if __name__ == "__main__":
    main()
