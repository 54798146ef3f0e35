"""Gymnasium's vector envs. `AsyncVectorEnv` has one process per env, with shared memory; `SyncVectorEnv`, in one
process, is faster for envs with fast steps. Neither copies observations."""

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks import fresh
from benchmarks.bare import make_one
from benchmarks.cases import CASES
from benchmarks.peers import loop


def measuring(case: str, side: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames and seconds of a loop over the vector env of class `side`."""
    group = CASES[case]
    make, number = partial(make_one, group), group.workers * group.num_envs
    kind: Any = {"AsyncVectorEnv": AsyncVectorEnv, "SyncVectorEnv": SyncVectorEnv}[side]
    envs = kind([make] * number, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        observation, reward, terminated, truncated, _ = envs.step(action)
        return observation, reward, terminated | truncated, number

    yield from loop.measured(group, make(), envs.reset(seed=0)[0], step, number if kind is AsyncVectorEnv else 1)


if __name__ == "__main__":
    fresh.serve_turns(measuring)
