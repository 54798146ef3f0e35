"""The loop of a script over a peer's vector env: acts, steps, and writes observations, actions, rewards and ends into
arrays of the length of a batch, as CleanRL's files do.

The networks are those of `benchmarks.cases`, without collectx and without values.
"""

import os
import signal
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import fresh
from benchmarks.cases import Case

# Returns observations, rewards and ends of `[E, ...]`, and how many steps were frames.
Step = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray, int]]


def measured(case: Case, env: Any, first: np.ndarray, step: Step, processes: int) -> Generator[dict, float, None]:
    """Measures frames and seconds of the loop, then kills the processes of its group.

    Args:
        env: one of the envs.
        first: observations of the resets.
        processes: that step envs.
    """
    act, observation, t = actor(case, env), first, 0
    observations = np.empty((case.steps, *first.shape), first.dtype)
    actions = np.empty((case.steps, *act(first).shape), act(first).dtype)
    rewards, ends = np.empty((case.steps, len(first)), np.float32), np.empty((case.steps, len(first)), np.bool_)

    def take() -> int:
        nonlocal observation, t
        observations[t] = observation
        actions[t] = action = act(observation)
        observation, rewards[t], ends[t], frames = step(action)
        t = (t + 1) % case.steps
        return frames

    try:
        yield from fresh.turns(take, processes=processes)
    finally:
        os.killpg(0, signal.SIGKILL)


def actor(case: Case, env: Any) -> Callable[[np.ndarray], np.ndarray]:
    """The policy for `[E, *shape]` observations of envs like `env`. Sets torch to one thread and inference mode."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    if case.policy == "ballast":
        return lambda observation: np.zeros(len(observation), np.int64)
    discrete = hasattr(env.action_space, "n")
    network = _network(case, env.observation_space.shape, env.action_space.n if discrete else env.action_space.shape[0])
    if discrete:
        return torch.inference_mode()(lambda observation: network(torch.from_numpy(observation)).argmax(-1).numpy())
    return torch.inference_mode()(lambda observation: network(torch.from_numpy(observation)).clamp_(-1.0, 1.0).numpy())


def _network(case: Case, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    if case.policy == "mlp":
        layers = (nn.Linear(shape[0], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))
    else:
        layers = (
            *(nn.Conv2d(shape[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, num_outputs)),
        )
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(_Floats(1.0 if case.policy == "mlp" else 1.0 / 255.0), *layers)


class _Floats(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self._factor = factor

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        floats = observation.to(torch.float32)
        return floats if self._factor == 1.0 else floats.mul(self._factor)
