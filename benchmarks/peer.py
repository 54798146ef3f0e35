"""The same envs and policy through TorchRL's collectors, with the same batches, workers and envs per worker.

Follows TorchRL's advice for speed: integer actions instead of one-hot, a trusted policy, no wrapping, one thread per
worker. Several envs per worker are a SerialEnv, which steps them in the worker's process, like collectx. The
distributed and the RPC collector start local processes and use gloo; Ray's uses a cluster on this machine only.
"""

import os
import signal
from collections.abc import Callable, Generator
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, RAY, RAY_KINDS, RPC_KINDS, SERVER, Case, env_config, policy_config


def measuring(case: str, kind: str, device: str = "cpu", **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames from one delivered batch to another, and seconds, after a warm-up.

    Args:
        device: of the policy of an `AsyncBatchedCollector`.
    """
    import torch
    from tensordict.nn import TensorDictModule

    from benchmarks.greedy import Greedy, Nothing
    from collectx import env as envs
    from collectx import policy as policies

    torch.set_num_threads(1)
    group = CASES[case]
    if group.policy == "ballast":
        module: torch.nn.Module = Nothing()
    else:
        spec = envs.read_spec(env_config(group))
        module = Greedy(policies.build(policy_config(group), spec, 0)).requires_grad_(False)
    policy = TensorDictModule(module, in_keys=["observation"], out_keys=["action"])
    make = partial(make_env, group)
    batches = iter(
        _batched(make, policy, group, device) if kind.endswith(SERVER) else _collector(kind, make, policy, group)
    )
    try:
        next(batches)
        seconds = yield {}
        while True:
            # The batches that were ready before.
            for _ in range(group.num_workers(kind)):
                next(batches)
            frames, began = 0, perf_counter()
            while (elapsed_s := perf_counter() - began) < seconds:
                frames += next(batches).numel()
            seconds = yield {"frames": frames, "seconds": elapsed_s}
    finally:
        # Most shutdowns take seconds, and may hang.
        os.killpg(0, signal.SIGKILL)


def _collector(kind: str, make: Callable[[], Any], policy: Any, case: Case) -> Any:
    import torchrl.collectors as peers
    from torchrl.collectors.distributed import DistributedCollector, RayCollector, RPCCollector

    arguments: dict[str, Any] = {"frames_per_batch": case.frames_per_batch(kind), "total_frames": -1}
    if kind == "single":
        return peers.Collector(make, policy, trust_policy=True, **arguments)
    makers = [make] * case.num_workers(kind)
    if kind == "multi_sync":
        return peers.MultiSyncCollector(makers, policy, trust_policy=True, cat_results="stack", **arguments)
    if kind == "multi_async":
        return peers.MultiAsyncCollector(makers, policy, trust_policy=True, **arguments)
    if kind in RAY_KINDS:
        return RayCollector(
            makers,
            policy,
            collector_kwargs={"trust_policy": True},
            sync=kind.endswith("_sync"),
            ray_init_config=RAY,
            remote_configs={"num_cpus": 1},
            **(arguments | {"total_frames": 10**9}),
        )
    return (RPCCollector if kind in RPC_KINDS else DistributedCollector)(
        makers,
        policy,
        collector_kwargs={"trust_policy": True},
        sync=kind.endswith("_sync"),
        launcher="mp",
        backend="gloo",
        # Several of them run at once.
        tcp_port=20_000 + os.getpid() % 10_000,
        # With total_frames=-1 it ends before its first batch.
        **(arguments | {"total_frames": 10**9}),
    )


def _batched(make: Callable[[], Any], policy: Any, case: Case, device: str) -> Any:
    """One env in each process, and a process for the policy, which is the fast configuration of its documentation."""
    from torchrl.collectors import AsyncBatchedCollector
    from torchrl.modules.inference_server import InferenceServerConfig

    kind = "multi_async" + SERVER
    return AsyncBatchedCollector(
        [make] * case.num_workers(kind),
        policy_factory=partial(_same, policy),
        device=None if device == "cpu" else device,
        frames_per_batch=case.frames_per_batch(kind),
        env_backend="multiprocessing",
        transport="auto",
        transition_chunk_size=case.steps,
        server_config=InferenceServerConfig(max_batch_size=case.workers, min_batch_size=1, timeout=0.001),
    )


def _same(policy: Any) -> Any:
    return policy


def make_env(case: Case) -> Any:
    """The env group of one worker; with `Case.torchrl` under transforms, as in most scripts."""
    from torchrl.envs import Compose, RewardSum, SerialEnv, StepCounter, TransformedEnv

    one = partial(_gym_env, case)
    env = one() if case.num_envs == 1 else SerialEnv(case.num_envs, one)
    return TransformedEnv(env, Compose(StepCounter(), RewardSum())) if case.torchrl else env


def _gym_env(case: Case) -> Any:
    from torchrl.envs import GymWrapper

    from benchmarks.bare import make_one

    return GymWrapper(make_one(case), categorical_action_encoding=True)


if __name__ == "__main__":
    fresh.serve_turns(measuring)
