"""Stable-Baselines3's vector envs. `SubprocVecEnv` has one process per env; for cheap envs its documentation
recommends `DummyVecEnv`, in one process."""

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks import fresh
from benchmarks.bare import make_one
from benchmarks.cases import CASES
from benchmarks.peers import loop


def measuring(case: str, side: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames and seconds of a loop over the vector env of class `side`."""
    group = CASES[case]
    make, number = partial(make_one, group), group.workers * group.num_envs
    forked = side == "SubprocVecEnv"
    envs: Any = SubprocVecEnv([make] * number, start_method="fork") if forked else DummyVecEnv([make] * number)

    def step(action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        observation, reward, done, _ = envs.step(action)
        return observation, reward, done, number

    yield from loop.measured(group, make(), envs.reset(), step, number if forked else 1)


if __name__ == "__main__":
    fresh.serve_turns(measuring)
