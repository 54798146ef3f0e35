"""A vector env that returns tensors on a device, for `benchmarks/gpu.py`: pendulums, with a policy of two layers."""

import json
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from tensordict.nn import TensorDictModule
from torch import nn

from collectx import Collector

_STEPS, _EPISODE = 32, 200


class Pendulums(VectorEnv):
    """Pendulums that are pushed to the left or to the right."""

    def __init__(self, num_envs: int, device: str):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,))
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._state = torch.rand(2, self.num_envs, device=self.device) - 0.5
        # Not all episodes end in the same step.
        self._step = torch.arange(self.num_envs, device=self.device) % _EPISODE
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        angle, speed = self._state
        torque = 4.0 * actions - 2.0
        speed = (speed + 0.05 * (15.0 * angle.sin() + 3.0 * torque)).clamp(-8.0, 8.0)
        angle = angle + 0.05 * speed
        self._state = torch.stack([angle, speed])
        self._step = self._step + 1
        truncated = self._step >= _EPISODE
        final, reward = self._observe(), angle.cos() - 0.1 * speed.square() - 0.001 * torque.square()
        self._state = torch.where(truncated, torch.rand_like(self._state) - 0.5, self._state)
        self._step = self._step * ~truncated
        return self._observe(), reward, torch.zeros_like(truncated), truncated, {"final_obs": final}

    def _observe(self) -> torch.Tensor:
        angle, speed = self._state
        return torch.stack([angle.cos(), angle.sin(), speed], -1)

    def close(self, **kwargs: Any) -> None:
        pass


class Argmax(nn.Module):
    """Takes the most likely action."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layers(observation).argmax(-1)


def _network() -> nn.Module:
    return Argmax(nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2)))


def bare_rate(env: Pendulums, seconds: float) -> float:
    """Frames/s of a loop that acts and steps, and stores nothing."""
    policy = _network().to(env.device)
    observation, _ = env.reset()
    frames, began = 0, perf_counter()
    with torch.inference_mode():
        while perf_counter() - began < seconds:
            for _ in range(_STEPS):
                observation, *_ = env.step(policy(observation))
            frames += _STEPS * env.num_envs
            observation.sum().item()  # waits, as a batch does
    return frames / (perf_counter() - began)


def collector_of(num_envs: int, device: str) -> Collector:
    """A collector of batches of 32 steps, on the device."""
    policy = TensorDictModule(_network(), in_keys=["observation"], out_keys=["action"])
    frames = _STEPS * num_envs
    return Collector(partial(Pendulums, num_envs, device), policy, frames_per_batch=frames, device=device)


def bytes_to_host(collector: Collector, trace: Path) -> float:
    """The bytes per frame that are copied from the device to the host in four batches, by torch's profiler."""
    frames = 0
    with torch.profiler.profile() as profile:
        for _ in range(4):
            frames += next(collector).numel()
    profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    copies = [event for event in events if event.get("cat") == "gpu_memcpy" and "DtoH" in event["name"]]
    return sum(event["args"]["bytes"] for event in copies) / frames
