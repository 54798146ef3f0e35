"""Composes a collector from a configuration: schedule, transport and place, chosen one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from collectx import policy as policies
from collectx.batch import batch_leaves
from collectx.collector.batch_info import DeliverySpec
from collectx.collector.collector import Collector
from collectx.collector.failure_policy import FailurePolicy
from collectx.config import (
    CollectorConfig,
    DevicesConfig,
    LauncherConfig,
    RayLauncherConfig,
    RpcBackendConfig,
    RunConfig,
    backend_of,
    is_async,
    is_stacked,
    num_workers_of,
    rows_per_env,
)
from collectx.env.base import EnvSpec
from collectx.launcher.base import Launcher
from collectx.policy.recurrent import spec_with_states
from collectx.policy.weights import FlatWeights
from collectx.rollout.options import RolloutOptions
from collectx.schedule.base import AsyncSchedule, Schedule, SyncSchedule
from collectx.schedule.replay import RecordedBatch, ReplaySchedule
from collectx.transport.base import SlabSpec, Transport
from collectx.worker.spec import NestedSpec, WorkerSpec

if TYPE_CHECKING:
    from collectx.launcher.local import LocalLauncher
    from collectx.transport.supervisor import Supervisor


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of a run's workers a collector has, where it is not all of them.

    Attributes:
        first_worker: how many workers of the run come before its own.
        num_workers: how many the run has.
        life: of all its workers.
    """

    first_worker: int
    num_workers: int
    life: int


def build(
    cfg: RunConfig,
    policy: Callable | None,
    spec: EnvSpec,
    events: Callable[..., None] = lambda name, **fields: None,
    log_dir: Path | None = None,
    launcher: Launcher | None = None,
    overrides: Sequence[Mapping[str, Any]] | None = None,
    share: Share | None = None,
    recorded: Sequence[RecordedBatch] | None = None,
) -> Collector:
    """Starts the workers and returns the collector over them. Does not wait for them.

    Args:
        policy: the trainer's policy (see `collectx.policy.build`), whose weights become version 0.
        spec: of one worker's group of envs.
        events: called as `events(name, **fields)` when workers have started, joined, or failed.
        log_dir: where worker processes write their logs; None leaves their output on the terminal.
        launcher: where workers come up that `cfg.launcher` does not start on this machine.
        overrides: for each worker, the fields of its `WorkerSpec` that differ from `cfg`. All workers must make equally
            many envs, of the same spaces.
        share: where these are only some of the run's workers.
        recorded: what another run has delivered, for an async collector that is to deliver the same.

    Raises:
        ConfigError, ShapeError: the policy does not fit the env, or the env cannot be reset as `cfg.collector` wants.
    """
    want = cfg.collector
    num_workers = num_workers_of(cfg)
    may_end_early = want.preemptive_threshold is not None or any("should_end" in each for each in overrides or ())
    rollout = dataclasses.replace(rollout_options(want, num_workers), may_end_early=may_end_early)
    spec = rollout.env_spec(spec)
    # Only asked what it writes; it stays where the trainer keeps it.
    exploration, is_trusted = policies.ExplorationType(want.exploration_type), policies.is_trusted(cfg.policy)
    actor = policies.make_actor(policy, spec, _device_of(policy), exploration, is_trusted)
    # What a worker has written itself is written: nobody else may do it in its place.
    exact = any("replay" in each for each in overrides or ())
    schedule = make_schedule(want, num_workers, recorded, exact)
    rows = spec.num_envs * rows_per_env(want)
    slab = SlabSpec(
        leaves=batch_leaves(
            spec_with_states(spec, actor.states).observation, actor.leaves, want.compact_obs, spec.rewards
        ),
        rows=rows,
        steps=want.frames_per_batch // (rows * (num_workers if schedule.joined else 1)),
        num_workers=num_workers,
        num_slots=schedule.num_slots,
        stacked=schedule.joined,
        require_latest=schedule.require_latest,
        weights_nbytes=FlatWeights(actor.module).nbytes,
    )
    devices = resolve_devices(cfg.devices)
    share = share or Share(0, num_workers * want.num_workers_per_collector, 0)
    task = WorkerSpec(
        0,
        share.num_workers,
        spec.num_envs,
        cfg.env,
        cfg.policy,
        devices.policy_device or "cpu",
        want.exploration_type,
        cfg.seed,
        slab.leaves,
        rollout,
        share.life,
        share.first_worker,
        _inner(cfg),
    )

    visible = cfg.backend.visible_devices if isinstance(cfg.backend, RpcBackendConfig) else None

    def life_of(worker: int, restarts: int) -> int:
        # A worker that is added has the envs of one of the first `num_workers`, in lives that no other worker has.
        return share.life + worker // num_workers * (want.max_restarts + 1) + restarts

    def task_of(worker: int, life: int) -> WorkerSpec:
        index = worker % num_workers
        begun = dataclasses.replace(rollout, num_random_batches=0) if life else rollout
        first = share.first_worker + index - worker
        changed = {
            "worker": worker,
            "first_worker": first,
            "life": life,
            "rollout": begun,
            "visible_device": visible[index] if visible else None,
            **(overrides[worker] if overrides else {}),
        }
        return dataclasses.replace(task, **changed)

    transport, start = _connect(cfg, slab, task_of, events, log_dir, launcher)
    delivery = DeliverySpec(
        leaves=slab.leaves,
        rows=rows,
        shape=spec.batch_shape if rows == spec.num_envs and spec.batch_shape else (rows,) if rows > 1 else (),
        steps=slab.steps,
        stacked=is_stacked(want),
        total_frames=want.total_frames,
        zero_copy=want.zero_copy,
        storing_device=None if devices.storing_device is None else torch.device(devices.storing_device),
    )
    replacements = FailurePolicy(
        want.on_worker_failure,
        want.max_restarts,
        lambda worker, restarts: start([task_of(worker, life_of(worker, restarts))]),
    )
    collector = Collector(transport, schedule, delivery, num_workers, replacements, events)
    try:
        collector.publish(policy if isinstance(policy, nn.Module) else actor.module)
        start([task_of(worker, life_of(worker, 0)) for worker in range(num_workers)])
    except BaseException:
        collector.close()
        raise
    events("workers_started", num_workers=num_workers, backend=backend_of(cfg), launcher=cfg.launcher.kind)
    return collector


Start = Callable[[Sequence[WorkerSpec]], None]


def _connect(
    cfg: RunConfig,
    slab: SlabSpec,
    task_of: Callable[[int, int], WorkerSpec],
    events: Callable[..., None],
    log_dir: Path | None,
    launcher: Launcher | None,
) -> tuple[Transport, Start]:
    """The transport, and what starts workers for it."""
    backend = backend_of(cfg)
    if backend == "inline":
        return _inline(slab)
    from collectx.launcher.local import LocalLauncher, allow_descriptors
    from collectx.transport.supervisor import Supervisor

    want = cfg.collector
    allow_descriptors(want.num_workers)
    local = LocalLauncher(cfg.launcher.num_threads, cfg.launcher.pin_cores, log_dir)
    if isinstance(cfg.launcher, RayLauncherConfig):
        launcher = _actors(cfg, task_of)
    supervisor: Supervisor = Supervisor(
        want.start_timeout_s,
        want.worker_timeout_s,
        want.close_timeout_s,
        local.describe if launcher is None else launcher.describe,
        None if launcher is None else launcher.join_timeout,
    )
    if backend == "shared_memory":
        return _shared_memory(slab, supervisor, local)
    return _distributed(cfg, slab, task_of, supervisor, local if launcher is None else launcher, events)


def _inline(slab: SlabSpec) -> tuple[Transport, Start]:
    from collectx.transport.inline import InlineTransport
    from collectx.worker.rollout_source import rollout_worker

    transport = InlineTransport(slab)

    def start(tasks: Sequence[WorkerSpec]) -> None:
        for task in tasks:
            transport.attach(task.worker, rollout_worker(task, transport.link(task.worker), True))

    return transport, start


def _shared_memory(slab: SlabSpec, supervisor: Supervisor, launcher: LocalLauncher) -> tuple[Transport, Start]:
    from collectx.transport.shared_memory import SharedMemoryTransport
    from collectx.worker.rollout_source import run_worker

    transport = SharedMemoryTransport(slab, supervisor)

    def start(tasks: Sequence[WorkerSpec]) -> None:
        for task in tasks:
            link = transport.link(task.worker)
            transport.attach(task.worker, launcher.start(run_worker, (task, link), task.worker))

    return transport, start


def _distributed(
    cfg: RunConfig,
    slab: SlabSpec,
    task_of: Callable[[int, int], WorkerSpec],
    supervisor: Supervisor,
    launcher: LocalLauncher | Launcher,
    events: Callable[..., None],
) -> tuple[Transport, Start]:
    from collectx.collector.worker_entry import run_remote_worker
    from collectx.transport.network.addresses import local_addresses
    from collectx.transport.network.handshake import new_secret
    from collectx.transport.network.trainer import NetworkTransport

    backend, devices = backend_of(cfg), resolve_devices(cfg.devices)
    is_local = not isinstance(launcher, Launcher) and cfg.backend.interface is None
    if backend == "mpi" and not isinstance(launcher, Launcher):
        from collectx.collector.spawned import spawning

        launcher = spawning(launcher, cfg.collector.start_timeout_s, lambda worker, life: task_of(worker, life).given)
    # Over the other backends bytes lie on the CPU at both ends.
    ends = (devices.storing_device or "cpu", devices.policy_device or "cpu") if backend == "nccl" else ("cpu", "cpu")
    transport = NetworkTransport(
        slab,
        supervisor,
        ("127.0.0.1",) if is_local else local_addresses(cfg.backend.interface),
        cfg.backend.port or 0,
        new_secret(),
        lambda worker, life: task_of(worker, life).to_json(),
        cfg.collector.worker_timeout_s,
        events,
        backend,
        ends,
        cfg.backend.tensorpipe if isinstance(cfg.backend, RpcBackendConfig) else None,
        cfg.backend.interface,
    )
    if isinstance(launcher, Launcher):
        launcher.announce(transport.endpoint)

    def start(tasks: Sequence[WorkerSpec]) -> None:
        for each in tasks:
            transport.expect(each.worker, each.life)
            if isinstance(launcher, Launcher):
                handle = launcher.start(each.worker, each.life)
            else:
                arguments = (transport.endpoint, each.worker, cfg.collector.start_timeout_s, each.given)
                handle = launcher.start(run_remote_worker, arguments, each.worker)
            if handle is not None:
                transport.attach(each.worker, handle)

    return transport, start


def _actors(cfg: RunConfig, task_of: Callable[[int, int], WorkerSpec]) -> Launcher:
    from collectx.collector.actors import placing

    assert isinstance(cfg.launcher, RayLauncherConfig)
    return placing(
        cfg.launcher,
        cfg.collector.num_workers,
        cfg.collector.start_timeout_s,
        lambda worker, life: task_of(worker, life).given,
    )


def _inner(cfg: RunConfig) -> NestedSpec | None:
    """What a worker is told that is itself a collector."""
    want = cfg.collector
    if want.num_workers_per_collector == 1:
        return None
    plain = {each.name: getattr(want, each.name) for each in dataclasses.fields(CollectorConfig)}
    inner = dataclasses.replace(
        CollectorConfig(**plain),
        kind=f"multi_{want.inner}",
        num_workers=want.num_workers_per_collector,
        frames_per_batch=want.frames_per_batch // (want.num_workers if is_stacked(want) else 1),
        total_frames=-1,
        zero_copy=True,
        on_worker_failure="raise",
        num_workers_per_collector=1,
        init_random_frames=-(-(want.init_random_frames or 0) // want.num_workers),
    )
    return NestedSpec(
        inner,
        LauncherConfig(
            kind="local", hydra_mode=None, num_threads=cfg.launcher.num_threads, pin_cores=cfg.launcher.pin_cores
        ),
    )


def _device_of(policy: Callable | None) -> torch.device:
    parameters = policy.parameters() if isinstance(policy, nn.Module) else ()
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def rollout_options(want: CollectorConfig, num_workers: int) -> RolloutOptions:
    """What each of so many workers is told in its first life."""
    frames_per_part = want.frames_per_batch // (num_workers if is_stacked(want) else 1)
    return RolloutOptions(
        want.check_finite,
        want.max_frames_per_traj,
        -(-(want.init_random_frames or 0) // (num_workers * frames_per_part)),
        want.reset_at_each_iter,
        want.set_truncated,
        want.refresh == "step",
    )


def make_schedule(
    want: CollectorConfig, num_workers: int, recorded: Sequence[RecordedBatch] | None = None, exact: bool = False
) -> Schedule:
    """The order of its batches."""
    if not is_async(want):
        return SyncSchedule(num_workers, want.preemptive_threshold)
    num_batches = None if want.total_frames < 0 else -(-want.total_frames // want.frames_per_batch)
    if recorded is not None:
        return ReplaySchedule(num_workers, want.num_slots, num_batches, recorded, want.zero_copy)
    return AsyncSchedule(num_workers, want.num_slots, num_batches, exact)


def resolve_devices(devices: DevicesConfig) -> DevicesConfig:
    """TorchRL's rule: `device` fills whichever of the other three is not given; batches then stay where both the policy
    and the envs are."""
    device = devices.device
    policy, env = devices.policy_device or device, devices.env_device or device
    return DevicesConfig(
        device=device,
        storing_device=devices.storing_device or device or (policy if policy == env else None),
        policy_device=policy,
        env_device=env,
    )
