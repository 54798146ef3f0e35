"""Offline learning: a run records random actions on CartPole, then double DQN learns from the file alone.

    python examples/offline_from_recorded.py --frames 20480 --workers 2 --seed 0

`collectx run trainer=record` writes whole episodes to a folder, and `collectx.data.load` reads them as one TensorDict.
The recorded episodes have a mean return of about 22; the learned policy has one above 100. Takes half a minute
on two cores. With more steps it gets worse: nothing corrects values of states that the data do not have, which is what
algorithms for offline data are for.
"""

import argparse
import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torch import nn

import collectx.data
from collectx import Collector

BATCH_SIZE, GAMMA, TAU, LEARNING_RATE, EPISODES = 256, 0.95, 0.005, 3e-4, 20


def record(folder, args):
    """Records random actions. The same command with `policy=custom` records those of a policy of yours."""
    words = f"run env=cartpole policy=random trainer=record trainer.dir={folder} seed={args.seed}"
    sizes = f"collector.num_workers={args.workers} collector.frames_per_batch=1024 collector.total_frames={args.frames}"
    run = f"hydra.run.dir={folder}-run"
    subprocess.run([sys.executable, "-m", "collectx", *words.split(), *sizes.split(), run], check=True)


class Q(nn.Module):
    """Values of the two actions, [..., 2]; `forward` is the greedy policy."""

    def __init__(self):
        super().__init__()
        self.values = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, observation):
        return self.values(observation).argmax(-1)


def learn(sample, q, target, optimizer):
    """Takes one gradient step of double DQN on `sample`, [frames]; returns the loss."""
    following = sample["next"]
    with torch.no_grad():
        best = q(following["observation"]).unsqueeze(-1)
        value = target.values(following["observation"]).gather(-1, best)
        wanted = following["reward"] + GAMMA * value * ~following["terminated"]
    chosen = q.values(sample["observation"]).gather(-1, sample["action"].unsqueeze(-1))
    loss = nn.functional.smooth_l1_loss(chosen, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    return loss.item()


def evaluate(q, seed):
    """The mean return of EPISODES whole episodes with the greedy policy."""
    collector = Collector(
        lambda: gymnasium.make("CartPole-v1"),
        TensorDictModule(q, in_keys=["observation"], out_keys=["action"]),
        frames_per_batch=500,
        trajs_per_batch=EPISODES,
        traj_format="cat",  # [time]: one episode after another
        seed=seed,
    )
    with collector:
        return next(iter(collector))["next", "reward"].sum().item() / EPISODES


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=20_480, help="frames to record")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000, help="gradient steps")
    parser.add_argument("--data", type=Path, help="a recorded data set; otherwise one is recorded")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # more do not help networks of this size

    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            args.data = Path(folder, "cartpole")
            record(args.data, args)
        frames = collectx.data.load(args.data)
    episodes = int(frames["collector", "episode"][-1]) + 1
    print(f"loaded {len(frames)} frames of {episodes} episodes, mean return {len(frames) / episodes:.1f}")

    q = Q()
    target, optimizer = copy.deepcopy(q).requires_grad_(False), torch.optim.Adam(q.parameters(), LEARNING_RATE)
    for step in range(args.steps):
        loss = learn(frames[torch.randint(len(frames), (BATCH_SIZE,))], q, target, optimizer)
        if (step + 1) % 250 == 0:
            print(f"{step + 1:6} steps  loss {loss:7.4f}  return {evaluate(q, args.seed):6.1f}", flush=True)
    print(f"{len(frames)} frames, mean return of the last {EPISODES} episodes: {evaluate(q, args.seed + 1):.1f}")


if __name__ == "__main__":
    main()
