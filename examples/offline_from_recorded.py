r"""Offline learning on CartPole, from nothing but episodes that a run has recorded.

    collectx run trainer=record policy=random collector.num_workers=2 \
        collector.total_frames=20480 trainer.partial_episodes=true seed=0 \
        hydra.run.dir=recorded
    python examples/offline_from_recorded.py --data recorded --seed 0

The script runs the first command itself if there is no folder `recorded`. It learns
what the recorded policy does (behaviour cloning) and the values of its actions, and
then takes the best action (one-step offline RL, Brandfonbrener et al. 2021). Random
actions have a mean return of about 22; the learned policy exceeds 300 in half a minute
on two cores. To adapt it, record your own env with your own policy, and change
`make_env` and the sizes of the networks.
"""

import argparse
import copy
import subprocess
import sys
from pathlib import Path

import gymnasium
import torch
from torch import nn

import collectx.data
from collectx import ReplayBuffer

BATCH_SIZE, GAMMA, TAU, LEARNING_RATE, EPISODES = 256, 0.99, 0.01, 1e-3, 20


def make_env():
    """The recorded env, for the evaluation."""
    return gymnasium.make("CartPole-v1")


def record(folder, frames, workers, seed):
    """Records random actions to the run folder `folder`."""
    options = [
        "trainer=record",
        "policy=random",
        f"collector.num_workers={workers}",
        f"collector.total_frames={frames}",
        # Also the last episode of each env, which has not ended.
        "trainer.partial_episodes=true",
        f"seed={seed}",
        f"hydra.run.dir={folder}",
    ]
    subprocess.run([sys.executable, "-m", "collectx", "run", *options], check=True)


def mlp():
    return nn.Sequential(
        nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )


class Learner:
    """The recorded policy, cloned, and the values of its actions: networks, optimizer
    and one gradient step."""

    def __init__(self):
        # Observations [..., 4] to logits and to values, [..., 2].
        self.clone, self.value = mlp(), mlp()
        self.target = copy.deepcopy(self.value).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            [*self.clone.parameters(), *self.value.parameters()], LEARNING_RATE
        )

    def step(self, sample):
        """Takes one gradient step on `sample`, [BATCH_SIZE] frames; returns both
        losses."""
        action, following = sample["action"], sample["next"]
        logits = self.clone(sample["observation"])
        clone_loss = nn.functional.cross_entropy(logits, action)
        with torch.no_grad():
            # The value of what the recorded policy does next; a maximum would trust
            # actions that it never took.
            probability = self.clone(following["observation"]).softmax(-1)
            values = probability * self.target(following["observation"])
            expected = values.sum(-1, keepdim=True)
            goal = following["reward"] + GAMMA * ~following["terminated"] * expected
        value = self.value(sample["observation"]).gather(-1, action.unsqueeze(-1))
        value_loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        (clone_loss + value_loss).backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(
                self.target.parameters(), self.value.parameters(), strict=True
            ):
                slow.lerp_(fast, TAU)
        return clone_loss.item(), value_loss.item()


@torch.no_grad()
def evaluate(value, seed):
    """The mean return of EPISODES episodes with the action of the highest value."""
    env, total = make_env(), 0.0
    for episode in range(EPISODES):
        (observation, _), done = env.reset(seed=seed + episode), False
        while not done:
            action = value(torch.as_tensor(observation)).argmax().item()
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + reward, terminated or truncated
    return total / EPISODES


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", default="recorded", help="a run folder, or the folder of a data set"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=80,
        help="how often each frame is used, on average",
    )
    parser.add_argument(
        "--frames",
        type=int,
        default=20_480,
        help="frames that are recorded if there is no data",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that record")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # more do not help a network of this size

    if not Path(args.data).exists():
        record(args.data, args.frames, args.workers, args.seed)
    frames = collectx.data.load(args.data)  # [frames], whole episodes one after another
    episodes = int(frames["collector", "episode"][-1]) + 1
    recorded = frames["next", "reward"].sum().item() / episodes
    print(f"{episodes} episodes with a mean return of {recorded:.1f}")

    buffer = ReplayBuffer(len(frames), batch_size=BATCH_SIZE)
    buffer.extend(frames)
    learner = Learner()
    for epoch in range(1, args.epochs + 1):
        for _ in range(max(1, len(frames) // BATCH_SIZE)):
            losses = learner.step(buffer.sample())
        if epoch % 20 == 0:
            mean = evaluate(learner.value, args.seed)
            line = f"{epoch:8} epochs  return {mean:6.1f}  clone loss {losses[0]:7.4f}"
            print(f"{line}  value {losses[1]:7.4f}")
    mean = evaluate(learner.value, args.seed)
    print(
        f"{len(frames)} frames, mean return of the last {EPISODES} episodes: {mean:.1f}"
    )


if __name__ == "__main__":
    main()
