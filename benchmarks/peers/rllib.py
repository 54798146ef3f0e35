"""RLlib's env runners: two Ray actors with the envs of a worker each, in its own vector env. Asked for samples all at
once, as PPO does, or each one again as soon as it has delivered, as IMPALA does. Actions are not sampled."""

from collections.abc import Generator
from typing import Any

import gymnasium
import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.registry import register_env

from benchmarks import fresh
from benchmarks.bare import make_one
from benchmarks.cases import CASES, RAY, Case


class Ballast(TorchRLModule):
    """Does nothing with an observation."""

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: np.zeros(len(batch[Columns.OBS]), np.int64)}


def measuring(case: str, side: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames from one delivered list of episodes to another, and seconds."""
    group = CASES[case]
    ray.init(**RAY)
    register_env("peer", lambda _: _make(group))
    runners = EnvRunnerGroup(config=_config(group), local_env_runner=False)

    def sample(runner: Any) -> Any:
        return runner.sample()

    def take() -> int:
        if side == "sync":
            parts = runners.foreach_env_runner(sample, local_env_runner=False)
        else:
            parts = []
            while not parts:
                parts = runners.foreach_env_runner_async_fetch_ready(sample, timeout_seconds=0.002)
        return sum(len(episode) for part in parts for episode in part)

    turns = fresh.turns(take)
    result = next(turns)
    try:
        while True:
            # So that no runner samples in the turns of other sides.
            while runners.num_in_flight_async_reqs():
                runners.fetch_ready_async_reqs(timeout_seconds=0.1)
            result = turns.send((yield result))
    finally:
        ray.shutdown()


def _config(case: Case) -> Any:
    if case.policy == "ballast":
        spec = RLModuleSpec(module_class=Ballast)
    elif case.policy == "cnn":
        filters = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
        spec = RLModuleSpec(
            model_config=DefaultModelConfig(conv_filters=filters, head_fcnet_hiddens=[512], vf_share_layers=True)
        )
    else:
        spec = RLModuleSpec(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    config = PPOConfig().environment("peer").rl_module(rl_module_spec=spec)
    # Otherwise a failure is a restart without end.
    config = config.fault_tolerance(restart_failed_env_runners=False)
    return config.env_runners(
        num_env_runners=case.workers,
        num_envs_per_env_runner=case.num_envs,
        rollout_fragment_length=min(case.steps, 32),
        # So that none waits for its next request.
        max_requests_in_flight_per_env_runner=2,
        explore=False,
    )


def _make(case: Case) -> Any:
    env = make_one(case)
    if case.policy != "cnn":
        return env
    # RLlib's convolutions take floats, with the channels last.
    shape = env.observation_space.shape
    space = gymnasium.spaces.Box(0.0, 1.0, (*shape[1:], shape[0]), np.float32)
    return gymnasium.wrappers.TransformObservation(env, _floats, space)


def _floats(stack: np.ndarray) -> np.ndarray:
    return np.moveaxis(stack, 0, -1).astype(np.float32) / np.float32(255.0)


if __name__ == "__main__":
    fresh.serve_turns(measuring)
