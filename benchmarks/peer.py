"""The same envs and policy through TorchRL's collectors, with the same batches, workers and envs per worker.

TorchRL's own advice for speed is followed: integer actions instead of one-hot, the policy trusted, no wrapping, one
thread for each worker. Several envs per worker are a SerialEnv, which steps them in the worker's process, as ours does.
"""

from __future__ import annotations

import contextlib
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, Case, env_config, policy_config


def measure(case: str, kind: str, seconds: float, **_: Any) -> dict[str, Any]:
    """Frames/s from one delivered batch to another, after a warm-up."""
    import torch
    import torchrl.collectors
    from tensordict.nn import TensorDictModule

    from benchmarks.greedy import Greedy
    from collectx import env as envs
    from collectx import policy as policies

    torch.set_num_threads(1)
    found = CASES[case]
    spec = envs.read_spec(env_config(found))
    module = Greedy(policies.build(policy_config(found), spec, 0)).requires_grad_(False)
    policy = TensorDictModule(module, in_keys=["observation"], out_keys=["action"])
    make = partial(make_env, found)
    arguments: dict[str, Any] = {
        "frames_per_batch": found.frames_per_batch(kind),
        "total_frames": -1,
        "trust_policy": True,
    }
    if kind == "single":
        collector = torchrl.collectors.Collector(make, policy, **arguments)
    else:
        name = "MultiSyncCollector" if kind == "multi_sync" else "MultiAsyncCollector"
        if kind == "multi_sync":
            arguments["cat_results"] = "stack"
        collector = getattr(torchrl.collectors, name)([make] * found.num_workers(kind), policy, **arguments)
    try:
        batches = iter(collector)
        next(batches)
        warm = perf_counter()
        while perf_counter() - warm < 1.0:
            next(batches)
        frames, began = 0, perf_counter()
        while (elapsed_s := perf_counter() - began) < seconds:
            frames += next(batches).numel()
    finally:
        with contextlib.suppress(Exception):
            collector.shutdown()
    return {"frames_per_s": frames / elapsed_s}


def make_env(case: Case) -> Any:
    """The env group of one worker."""
    from torchrl.envs import GymEnv, SerialEnv

    one = partial(GymEnv, case.env_id, categorical_action_encoding=True)
    return one() if case.num_envs == 1 else SerialEnv(case.num_envs, one)


if __name__ == "__main__":
    fresh.serve(measure)
