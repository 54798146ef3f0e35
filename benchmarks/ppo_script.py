"""A whole script: PPO on CartPole-v1 with TorchRL's env, loss and advantages, and the collector of collectx or
TorchRL's. Prints the ratio of their wall times and their learning curves.

    python -m benchmarks.ppo_script                       # five seeds of each, in turn
    python -m benchmarks.ppo_script --side collectx --seed 0
"""

import argparse
import importlib
import json
import random
import resource
import subprocess
import sys
from statistics import mean, median
from time import perf_counter

SIDES = {"collectx": "collectx", "torchrl": "torchrl.collectors"}
FRAMES_PER_BATCH, TOTAL_FRAMES = 1000, 25_000
EPOCHS, MINIBATCH = 4, 100


def train(module: str, seed: int) -> list[float]:
    """Trains with `Collector` of `module`; returns the mean return of the episodes that ended in each batch."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    Collector = importlib.import_module(module).Collector
    torch.set_num_threads(1)
    torch.manual_seed(seed)

    def network(num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))

    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))
    env.set_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        spec=env.action_spec,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(FRAMES_PER_BATCH), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    collector = Collector(env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=TOTAL_FRAMES)
    collector.set_seed(seed)
    returns = []
    for data in collector:
        for _ in range(EPOCHS):
            advantage(data)
            buffer.extend(data.reshape(-1))
            for _ in range(FRAMES_PER_BATCH // MINIBATCH):
                losses = loss(buffer.sample())
                optimizer.zero_grad()
                sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        ended = data["next", "done"]
        returns.append(data["next", "episode_reward"][ended].mean().item())
    collector.shutdown()
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ppo_script", description=__doc__)
    parser.add_argument("--side", choices=[*SIDES], help="run one side in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each side (5)")
    options = parser.parse_args()
    if options.side:
        print(json.dumps({"returns": train(SIDES[options.side], options.seed)}))
        return
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    processor: dict[str, list[float]] = {side: [] for side in SIDES}
    curves: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for seed in range(options.seeds):
        for side in SIDES:
            began, used = perf_counter(), _processor_s()
            command = [sys.executable, "-m", __spec__.name, "--side", side, "--seed", str(seed)]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            seconds[side].append(perf_counter() - began)
            processor[side].append(_processor_s() - used)
            curves[side].append(json.loads(output.splitlines()[-1])["returns"])
            times = f"{seconds[side][-1]:.1f} s, {processor[side][-1]:.1f} s of processor time"
            print(f"seed {seed}, {side}: {times}", flush=True)
    for name, by_side in (("wall", seconds), ("processor", processor)):
        ratios = [theirs / ours for ours, theirs in zip(*by_side.values(), strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name} time, TorchRL's in times of collectx's: {median(ratios):.2f} ({spread})")
    print("frames | " + " | ".join(f"mean return with {side} (95 % bootstrap interval)" for side in SIDES))
    for last in range(4, TOTAL_FRAMES // FRAMES_PER_BATCH, 5):
        cells = [_interval([mean(curve[last - 4 : last + 1]) for curve in of_side]) for of_side in curves.values()]
        print(f"{(last + 1) * FRAMES_PER_BATCH:,} | " + " | ".join(cells))


def _processor_s() -> float:
    """The processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _interval(values: list[float]) -> str:
    """The mean over seeds, and the bootstrap interval of that mean."""
    draw = random.Random(0)
    means = sorted(mean(draw.choices(values, k=len(values))) for _ in range(10_000))
    return f"{mean(values):.0f} ({means[250]:.0f} to {means[-251]:.0f})"


if __name__ == "__main__":
    main()
