"""Composes a collector from a configuration: schedule, transport and place, chosen one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from collectx import policy as policies
from collectx.batch import batch_leaves
from collectx.collector.collector import Collector, DeliverySpec
from collectx.collector.schedule import AsyncSchedule, Schedule, SyncSchedule
from collectx.collector.worker import WorkerTask, serve, work
from collectx.config import CollectorConfig, DevicesConfig, RunConfig
from collectx.env.base import EnvSpec
from collectx.launcher.inline import InlineLauncher
from collectx.launcher.local import LocalLauncher
from collectx.policy.weights import FlatWeights
from collectx.transport.base import SlabSpec
from collectx.transport.inline import InlineTransport
from collectx.transport.shared_memory import SharedMemoryTransport


def runs_inline(cfg: RunConfig) -> bool:
    """Whether the workers are in the trainer's process."""
    return cfg.collector.kind == "single" or cfg.launcher.kind == "inline"


def build(
    cfg: RunConfig,
    policy: Callable | None,
    spec: EnvSpec,
    events: Callable[..., None] = lambda name, **fields: None,
    log_dir: Path | None = None,
) -> Collector:
    """Starts the workers and returns the collector over them. Does not wait for them.

    Args:
        policy: the trainer's policy (see `collectx.policy.build`), whose weights become version 0.
        spec: of one worker's group of envs.
        events: called as `events(name, **fields)` when workers have started, and when one has failed.
        log_dir: where worker processes write their logs; None leaves their output on the terminal.
    """
    want = cfg.collector
    num_workers = 1 if want.kind == "single" else want.num_workers
    # Only asked what it writes; it stays where the trainer keeps it.
    actor = policies.make_actor(policy, spec, _device_of(policy), policies.ExplorationType(want.exploration_type))
    leaves = batch_leaves(spec.observation, actor.leaves)
    schedule = make_schedule(want, num_workers)
    rows = spec.num_envs
    steps = want.frames_per_batch // (rows * (num_workers if schedule.joined else 1))
    slab = SlabSpec(
        leaves, rows, steps, num_workers, schedule.num_slots, schedule.joined, FlatWeights(actor.module).nbytes
    )
    devices = resolve_devices(cfg.devices)
    tasks = [
        WorkerTask(
            worker,
            num_workers,
            cfg.env,
            cfg.policy,
            devices.policy_device or "cpu",
            want.exploration_type,
            cfg.seed,
            leaves,
        )
        for worker in range(num_workers)
    ]
    transport: InlineTransport | SharedMemoryTransport
    if runs_inline(cfg):
        transport = InlineTransport(slab)
    else:
        launcher = LocalLauncher(cfg.launcher.num_threads, cfg.launcher.pin_cores, log_dir)
        transport = SharedMemoryTransport(
            slab, want.start_timeout_s, want.worker_timeout_s, want.close_timeout_s, launcher.describe
        )
    group = ((num_workers,) if want.kind == "multi_sync" else ()) + ((rows,) if rows > 1 else ())
    delivery = DeliverySpec(
        region_layout=transport.region_layout,
        batch_size=(*group, steps),
        frames_per_batch=want.frames_per_batch,
        total_frames=want.total_frames,
        zero_copy=want.zero_copy,
        storing_device=None if devices.storing_device is None else torch.device(devices.storing_device),
    )
    collector = Collector(transport, schedule, delivery, events)
    try:
        collector.publish(policy if isinstance(policy, nn.Module) else actor.module)
        links = [transport.link(worker) for worker in range(num_workers)]
        if isinstance(transport, InlineTransport):
            transport.attach(InlineLauncher().start(work, [(*pair, True) for pair in zip(tasks, links, strict=True)]))
        else:
            transport.attach(launcher.start(serve, list(zip(tasks, links, strict=True))))
    except BaseException:
        collector.close()
        raise
    events("workers_started", num_workers=num_workers, inline=runs_inline(cfg))
    return collector


def _device_of(policy: Callable | None) -> torch.device:
    parameters = policy.parameters() if isinstance(policy, nn.Module) else ()
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def make_schedule(want: CollectorConfig, num_workers: int) -> Schedule:
    """Sync for `single` and `multi_sync`, async for `multi_async`."""
    if want.kind != "multi_async":
        return SyncSchedule(num_workers)
    num_batches = None if want.total_frames < 0 else -(-want.total_frames // want.frames_per_batch)
    return AsyncSchedule(num_workers, want.num_slots, num_batches)


def resolve_devices(devices: DevicesConfig) -> DevicesConfig:
    """TorchRL's rule: `device` fills whichever of the other three is not given."""
    device = devices.device
    return DevicesConfig(
        device, devices.storing_device or device, devices.policy_device or device, devices.env_device or device
    )
