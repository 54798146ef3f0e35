"""Hindsight experience replay: DQN flips bits to a goal, and `post_traj` relabels whole
trajectories.

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
# Copies of a trajectory; share of the frames in which epsilon falls
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
        self.bits, self.goal = self.np_random.integers(0, 2, (2, BITS)).astype(
            np.float32
        )
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
        # A buffer travels to the workers with the weights
        self.register_buffer("epsilon", torch.tensor(1.0))

    def forward(self, observation, goal):
        best = self.net(torch.cat((observation, goal), -1)).argmax(-1)
        return torch.where(
            torch.rand(best.shape) < self.epsilon, torch.randint_like(best, BITS), best
        )


class Hindsight:
    """The hook `post_traj`: called in this process with each ended trajectory,
    [time]."""

    def __init__(self, goals):
        self.goals = goals
        self.successes = deque([False], maxlen=500)

    def __call__(self, trajectory):
        """The trajectory and `goals` copies of it, [(1 + goals) * time]: all of this is
        written to the buffer."""
        self.successes.append(trajectory["next", "terminated"][-1].item())
        return torch.cat(
            [trajectory] + [self.relabel(trajectory) for _ in range(self.goals)]
        )

    def relabel(self, trajectory):
        """A copy in which the goal of each frame is what was reached at the end of it
        or of a random later one."""
        relabelled, time = trajectory.clone(), torch.arange(len(trajectory))
        later = time + (torch.rand(len(time)) * (len(time) - time)).long()
        achieved = trajectory["next", "achieved_goal"]
        relabelled["desired_goal"] = relabelled["next", "desired_goal"] = achieved[
            later
        ]
        relabelled["next", "reward"] = reward(achieved, achieved[later]).unsqueeze(-1)
        relabelled["next", "terminated"] = relabelled["next", "reward"] == 0
        relabelled["next", "done"] = (
            relabelled["next", "terminated"] | relabelled["next", "truncated"]
        )
        return relabelled


def learn(net, target, optimizer, sample):
    """One step of double Q-learning from [BATCH_SIZE] frames; returns the loss."""
    following = sample["next"]
    inputs = torch.cat((sample["observation"], sample["desired_goal"]), -1)
    next_inputs = torch.cat((following["observation"], following["desired_goal"]), -1)
    value = net(inputs).gather(-1, sample["action"].unsqueeze(-1))
    with torch.no_grad():
        best = net(next_inputs).argmax(-1, keepdim=True)
        # The value after a truncated episode counts: its last observation is not a
        # goal.
        expected = following["reward"] + GAMMA * ~following["terminated"] * target(
            next_inputs
        ).gather(-1, best)
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
    parser.add_argument(
        "--her",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="relabel the trajectories",
    )
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
        # Of torch in this process: more do not help a network of this size
        num_threads=1,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=args.frames,
        # With a buffer: trajectories are written as soon as they have ended
        trajs_per_batch=1,
        post_traj=hindsight,
        replay_buffer=buffer,
        seed=args.seed,
    )
    frames = number = 0
    with collector:
        while collected := collector.fill():
            frames += collected
            number += 1
            success = 100 * sum(hindsight.successes) / len(hindsight.successes)
            if len(buffer) < BATCH_SIZE:
                continue
            for _ in range(LEARN_STEPS):
                loss = learn(policy.net, target, optimizer, buffer.sample())
            policy.epsilon.fill_(
                max(LEAST_EPSILON, 1 - frames / (EXPLORATION * args.frames))
            )
            collector.update_policy_weights_()
            if number % 10 == 0:
                print(
                    f"{frames:8} frames  success {success:5.1f} %  loss {loss:7.4f}  buffer {len(buffer)} frames"
                )
    print(
        f"{frames} frames, success of the last {len(hindsight.successes)} episodes: {success:.1f} %"
    )


if __name__ == "__main__":
    main()
