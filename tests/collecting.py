"""Configurations for tests, with every knob a keyword, and how to drive a collector over them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from collectx import (
    Collector,
    DistributedCollector,
    DistributedSyncCollector,
    MultiAsyncCollector,
    MultiSyncCollector,
    RPCCollector,
)
from collectx import env as envs
from collectx import policy as policies
from collectx.collector import build
from collectx.config import (
    BackendConfig,
    CollectorConfig,
    CountingEnvConfig,
    CustomPolicyConfig,
    DevicesConfig,
    EitherCollectorConfig,
    GymEnvConfig,
    GymVectorEnvConfig,
    LauncherConfig,
    MeterTrainerConfig,
    MlpPolicyConfig,
    RandomPolicyConfig,
    RayLauncherConfig,
    RunConfig,
)

# Inline workers use the trainer's threads; worker processes have one.
torch.set_num_threads(1)

# The library's collectors.
WAYS = {
    "single": Collector,
    "multi_sync": MultiSyncCollector,
    "multi_async": MultiAsyncCollector,
    "distributed": DistributedCollector,
    "distributed_sync": DistributedSyncCollector,
    "rpc": RPCCollector,
    "rpc_sync": partial(RPCCollector, sync=True),
}
SYNC = ("multi_sync", "distributed_sync", "rpc_sync")

# Ray starts as many processes as it has cores, and is there until the tests end.
RAY = {"num_cpus": 2, "address": "local", "include_dashboard": False}


def counting(num_envs=1, episode_length=7, observation_size=5, step_s=0.0):
    return CountingEnvConfig("counting", num_envs, episode_length, observation_size, step_s)


def gym(num_envs=1, id="CartPole-v1", entry_point=None, **kwargs):
    return GymEnvConfig("gym", num_envs, id if entry_point is None else None, entry_point, kwargs, [], [])


def faulty(fault, at_step=5, num_envs=1, **kwargs):
    return gym(num_envs, entry_point="faulty:FaultyEnv", fault=fault, at_step=at_step, **kwargs)


def gym_vector(num_envs, mode=None, vectorization="vector_entry_point", id="CartPole-v1"):
    return GymVectorEnvConfig("gym_vector", num_envs, id, None, {}, [], [], vectorization, mode)


def mlp():
    return MlpPolicyConfig("mlp", [8], "tanh")


def custom(target, **kwargs):
    return CustomPolicyConfig("custom", target, kwargs)


class Log:
    """Keeps what the collector reports."""

    def __init__(self):
        self.lines = []

    def __call__(self, name, **fields):
        self.lines.append((name, fields))

    def of(self, name):
        return [fields for each, fields in self.lines if each == name]


def config(
    kind="multi_sync",
    place="local",
    env=None,
    policy=None,
    *,
    num_workers=2,
    frames_per_batch=12,
    total_frames=120,
    exploration="random",
    num_slots=2,
    zero_copy=False,
    start_timeout_s=200.0,
    worker_timeout_s=120.0,
    close_timeout_s=60.0,
    on_worker_failure="raise",
    max_restarts=10,
    num_workers_per_collector=1,
    inner="sync",
    max_frames_per_traj=None,
    init_random_frames=None,
    reset_at_each_iter=False,
    set_truncated=False,
    refresh="batch",
    preemptive_threshold=None,
    trajs_per_batch=None,
    traj_format="padded",
    compact_obs=False,
    order_of=None,
    backend="auto",
    storing_device=None,
    device=None,
    policy_device=None,
    seed=0,
    ray_init_config=None,
    remote_configs=None,
    queue_timeout_s=240.0,
    autoscaling=False,
):
    # A kind that can be both is sync as "<kind>_sync".
    either, is_sync = kind.removesuffix("_sync"), kind.endswith("_sync")
    make = CollectorConfig
    if either in ("rpc", "ray"):
        kind, make = either, partial(EitherCollectorConfig, sync=is_sync)
    return RunConfig(
        env=env or counting(),
        policy=policy or RandomPolicyConfig("random"),
        collector=make(
            kind,
            num_workers,
            frames_per_batch,
            total_frames,
            exploration,
            num_slots,
            zero_copy,
            on_worker_failure,
            max_restarts,
            start_timeout_s,
            worker_timeout_s,
            close_timeout_s,
            num_workers_per_collector,
            inner,
            max_frames_per_traj,
            init_random_frames,
            reset_at_each_iter,
            set_truncated,
            refresh,
            preemptive_threshold,
            trajs_per_batch,
            traj_format,
            compact_obs,
            order_of,
        ),
        backend=BackendConfig(backend, None, None),
        launcher=RayLauncherConfig(
            "ray",
            None,
            1,
            False,
            ray_init_config or RAY,
            remote_configs or {"num_cpus": 0.1},
            queue_timeout_s,
            autoscaling,
        )
        if place == "ray"
        else LauncherConfig(place, None, 1, False),
        devices=DevicesConfig(device, storing_device, policy_device, None),
        trainer=MeterTrainerConfig("meter", False),
        seed=seed,
    )


def start(*args: Any, log_dir=None, events=None, **kwargs: Any):
    """A collector over `config(*args, **kwargs)`."""
    cfg = config(*args, **kwargs)
    spec = envs.read_spec(cfg.env)
    events = events or (lambda name, **fields: None)
    return build(cfg, policies.build(cfg.policy, spec, cfg.seed), spec, events, log_dir)


def batches(*args: Any, **kwargs: Any) -> list:
    """All batches of one run."""
    with start(*args, **kwargs) as collector:
        return list(collector)


def worker_pids(collector) -> list[int]:
    """The processes behind a collector of local workers."""
    handles = collector._transport._switchboard._handles
    return [handles[worker].pid for worker in sorted(handles)]
