"""Models of Stable-Baselines3 act in a collector as by themselves; as a process of its own, for `installs.py`."""

import gymnasium
import torch
from stable_baselines3 import DQN, PPO

from collectx import Collector, policy_from_agent

for algorithm in (PPO, DQN):
    model = algorithm("MlpPolicy", "CartPole-v1", device="cpu", seed=0)
    for num_envs in (1, 3):
        collector = Collector(
            lambda: gymnasium.make("CartPole-v1"),
            policy_from_agent(model, deterministic=True),
            num_envs=num_envs,
            frames_per_batch=24,
            total_frames=24,
        )
        (batch,) = collector
        collector.shutdown()
        expected, _ = model.predict(batch["observation"].reshape(-1, 4).numpy(), deterministic=True)
        assert torch.equal(batch["action"].flatten(), torch.as_tensor(expected)), algorithm
