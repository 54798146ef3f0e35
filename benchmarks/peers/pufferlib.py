"""PufferLib's vectorisation, `pufferlib-core`: two processes with the envs of a worker each. `send` and `recv` take the
envs of one process at a time, so that the policy acts while the other one steps; the fastest path of its code."""

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from pufferlib import vector
from pufferlib.emulation import GymnasiumPufferEnv

from benchmarks import fresh
from benchmarks.bare import make_one
from benchmarks.cases import CASES
from benchmarks.peers import loop


def measuring(case: str, side: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames and seconds of a loop over the vector env of class `side`."""
    group = CASES[case]
    make, number = partial(make_one, group), group.workers * group.num_envs
    options: dict[str, Any] = {"num_workers": group.workers, "batch_size": group.num_envs, "overwork": True}
    if side == "Serial":
        options = {}
    envs = vector.make(GymnasiumPufferEnv, env_kwargs={"env_creator": make}, backend=side, num_envs=number, **options)

    def step(action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        envs.send(action)
        observation, reward, terminated, truncated, *_ = envs.recv()
        ends = terminated | truncated
        # A step after an end only resets the env.
        return observation, reward, ends, len(ends) - int(ends.sum())

    envs.async_reset(0)
    yield from loop.measured(group, make(), envs.recv()[0], step, group.workers if options else 1)


if __name__ == "__main__":
    fresh.serve_turns(measuring)
