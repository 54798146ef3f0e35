"""The README's loop, with types; for `mypy --strict`, see `installs.py`."""

import gymnasium
from torch import nn

from collectx import MultiAsyncCollector


def make_env() -> gymnasium.Env[object, object]:
    return gymnasium.make("CartPole-v1")


def main(policy: nn.Module) -> None:
    with MultiAsyncCollector([make_env] * 4, policy, frames_per_batch=1024, total_frames=1_000_000) as collector:
        for batch in collector:
            print(batch["next", "reward"].mean())
            collector.update_policy_weights_()
