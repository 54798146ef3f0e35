"""Composes a collector from a configuration: a schedule, a transport and a launcher, each chosen by itself."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from collectx import policy as policies
from collectx.batch import batch_leaves, nested_dims
from collectx.collector.batch_info import DeliverySpec, part_shape
from collectx.collector.collector import Collector
from collectx.collector.failure_policy import FailurePolicy
from collectx.collector.members import Members
from collectx.collector.saved_state import first_requests, next_lives
from collectx.config.derived import backend_of, begins_with_few, is_async, is_stacked, num_workers_of
from collectx.config.schema.collector import CollectorConfig
from collectx.config.schema.launcher import DevicesConfig, LauncherConfig, RpcBackendConfig
from collectx.config.schema.run import RunConfig
from collectx.env.base import EnvSpec
from collectx.launcher import make_launcher
from collectx.launcher.base import Launcher
from collectx.policy.recurrent import spec_with_states
from collectx.policy.weights import FlatWeights, device_of
from collectx.schedule.asynchronous import AsyncSchedule
from collectx.schedule.base import Schedule
from collectx.schedule.bounded_lag import BoundedLagSchedule
from collectx.schedule.replay import RecordedBatch, ReplaySchedule
from collectx.schedule.sync import PreemptiveSchedule, SyncSchedule
from collectx.transport.base import SlabSpec, Transport
from collectx.user_objects import Hooks
from collectx.worker.spec import NestedSpec, WorkerSpec, rollout_options

# `spec_of(worker, life)` is the spec of one life of a worker.
SpecOf = Callable[[int, int], WorkerSpec]


def build(
    cfg: RunConfig,
    policy: Callable | None,
    spec: EnvSpec,
    events: Callable[..., None] = lambda name, **fields: None,
    log_dir: Path | None = None,
    launcher: Launcher | None = None,
    overrides: Sequence[Mapping[str, Any]] = (),
    recorded: Sequence[RecordedBatch] | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Collector:
    """Starts the workers and returns the collector over them. Does not wait for the workers.

    Args:
        policy: the trainer's policy (see `collectx.policy.build`); its weights become version 0.
        spec: of one worker's group of envs.
        events: called as `events(name, **fields)` when workers have started, joined, or failed.
        log_dir: where worker processes write their logs; None leaves their output on the terminal.
        launcher: None: the one of `cfg.launcher`, whose workers this process starts.
        overrides: for each worker, the fields of its `WorkerSpec` that differ from `cfg`. All workers must make equally
            many envs, of the same spaces.
        recorded: the batches of another run, for an async collector that delivers the same.
        resume: the state of a collector that this one continues (`collectx.collector.saved_state`); its weights are
            published in place of the policy's. `saved_state.load` has to be called next.

    Raises:
        ConfigError, ShapeError: the policy does not fit the env, or the env cannot be reset as `cfg.collector` asks.
        LauncherError: the workers cannot be started.
    """
    options, num_workers = cfg.collector, num_workers_of(cfg)
    may_end_early = options.preemptive_threshold is not None or any("should_end" in fields for fields in overrides)
    rollout = dataclasses.replace(rollout_options(options, num_workers), may_end_early=may_end_early)
    devices, device = resolve_devices(cfg.devices), device_of(policy)
    spec = dataclasses.replace(rollout.env_spec(spec), data_device=device if devices.policy_device else None)
    # Only its leaves and the layout of its weights are used; it stays on the trainer's device.
    exploration, is_trusted = policies.ExplorationType(options.exploration_type), policies.is_trusted(cfg.policy)
    actor = policies.make_actor(policy, spec, device, exploration, is_trusted)
    # A batch that a worker has written elsewhere has to be delivered.
    exact = any(fields.get("hooks", Hooks()).write_batch is not None for fields in overrides)
    is_elastic = begins_with_few(options) and recorded is None
    schedule = _make_schedule(options, 0 if is_elastic else num_workers, recorded, exact)
    rows = math.prod(part_shape(spec, options))
    observation = spec_with_states(spec, actor.states).observation
    omitted = {leaf.key[1:] for leaf in spec.deltas}
    if options.compact_obs:
        omitted = {leaf.key for leaf in observation if leaf not in spec.agents_ends}
    slab = SlabSpec(
        leaves=batch_leaves(observation, actor.leaves, omitted, spec.next_only_leaves),
        rows=rows,
        steps=options.frames_per_batch // (rows * (num_workers if schedule.stacked else 1)),
        num_workers=num_workers,
        num_slots=schedule.num_slots,
        stacked=schedule.stacked,
        require_latest=schedule.require_latest,
        weights_nbytes=FlatWeights(actor.module).nbytes,
        first_version=0 if resume is None else resume["version"],
    )
    worker_spec = WorkerSpec(
        worker=0,
        num_workers=num_workers * options.num_workers_per_collector,
        num_envs=spec.num_envs,
        env=cfg.env,
        policy=cfg.policy,
        policy_device=devices.policy_device,
        exploration_type=options.exploration_type,
        seed=cfg.seed,
        leaves=slab.leaves,
        rollout=rollout,
        nested=_nested_spec(cfg),
    )
    visible_devices = cfg.backend.visible_devices if isinstance(cfg.backend, RpcBackendConfig) else None

    def spec_of(worker: int, life: int) -> WorkerSpec:
        index = worker % num_workers
        fields = {
            "worker": worker,
            "first_worker": index - worker,
            "life": life,
            "visible_device": visible_devices[index] if visible_devices else None,
            **(overrides[worker] if overrides else {}),
        }
        if fields["life"]:
            fields["rollout"] = dataclasses.replace(rollout, num_random_batches=0)
        return dataclasses.replace(worker_spec, **fields)

    # Of the newest process of each worker: its life, and how many came before it.
    newest: dict[int, int] = {}
    restarts: Counter[int] = Counter()
    launcher = launcher or make_launcher(cfg, log_dir)
    transport = _connect(cfg, slab, spec_of, newest, launcher, events)
    if isinstance(schedule, PreemptiveSchedule):
        schedule.preempt = transport.preempt

    def start(worker: int, life: int) -> None:
        newest[worker] = life
        transport.expect(worker, life)
        handle = launcher.start(worker, restarts[worker])
        restarts[worker] += 1
        if handle is not None:
            transport.attach(worker, handle)

    delivery = DeliverySpec(
        slab=slab,
        shape=part_shape(spec, options),
        nested_dims=nested_dims(spec.nested_dims, slab.leaves),
        stacked=is_stacked(options),
        total_frames=options.total_frames,
        zero_copy=options.zero_copy,
        storing_device=None if devices.storing_device is None else torch.device(devices.storing_device),
    )
    failure_policy = FailurePolicy(
        options.on_worker_failure,
        options.max_restarts,
        num_workers,
        start,
        {} if resume is None else next_lives(resume),
        options.min_workers or 1,
        launcher.max_requeues,
    )
    requests = partial(first_requests, resume) if is_elastic else None
    members = Members(transport, schedule, failure_policy, events, options.min_workers or num_workers, requests)
    collector = Collector(transport, schedule, delivery, members)
    try:
        if resume is None:
            collector.publish(policy if isinstance(policy, nn.Module) else actor.module)
        else:
            collector.publish_flat(lambda buffer: buffer.copy_(resume["weights"]))
        for _ in range(num_workers):
            members.start()
    except BaseException:
        collector.close()
        raise
    events("workers_started", num_workers=num_workers, backend=backend_of(cfg), launcher=cfg.launcher.kind)
    return collector


def _make_schedule(
    options: CollectorConfig, num_workers: int, recorded: Sequence[RecordedBatch] | None, exact: bool
) -> Schedule:
    if not is_async(options):
        if options.preemptive_threshold is not None:
            return PreemptiveSchedule(num_workers, options.preemptive_threshold)
        return SyncSchedule(num_workers)
    num_batches = None if options.total_frames < 0 else -(-options.total_frames // options.frames_per_batch)
    if recorded is not None:
        return ReplaySchedule(num_workers, options.num_slots, num_batches, recorded, options.zero_copy)
    if options.max_policy_lag is not None:
        return BoundedLagSchedule(num_workers, options.num_slots, num_batches, exact, options.max_policy_lag)
    return AsyncSchedule(num_workers, options.num_slots, num_batches, exact)


def _connect(
    cfg: RunConfig,
    slab: SlabSpec,
    spec_of: SpecOf,
    lives: Mapping[int, int],
    launcher: Launcher,
    events: Callable[..., None],
) -> Transport:
    """Makes the transport, and passes the launcher the function that its workers call.

    Args:
        lives: of each worker's newest process, which is about to start.
    """
    backend, options = backend_of(cfg), cfg.collector
    if backend == "inline":
        from collectx.transport.inline import InlineTransport
        from collectx.worker.entry import inline_worker

        inline = InlineTransport(slab)
        launcher.prepare(lambda worker: (inline_worker, (spec_of(worker, lives[worker]), inline.link(worker))))
        return inline
    from collectx.launcher.local import allow_descriptors
    from collectx.transport.supervisor import Supervisor

    allow_descriptors(options.num_workers)
    supervisor: Supervisor[Any] = Supervisor(
        options.start_timeout_s,
        options.worker_timeout_s,
        options.close_timeout_s,
        launcher.describe,
        launcher.join_timeout,
    )
    if backend == "shared_memory":
        from collectx.transport.shared_memory import SharedMemoryTransport
        from collectx.worker.entry import run_worker

        shared = SharedMemoryTransport(slab, supervisor)
        launcher.prepare(lambda worker: (run_worker, (spec_of(worker, lives[worker]), shared.link(worker))))
        return shared
    from collectx.transport.network.addresses import local_addresses
    from collectx.transport.network.handshake import Endpoint, new_secret
    from collectx.transport.network.transport import NetworkTransport
    from collectx.worker.entry import run_remote_worker

    devices, interface = resolve_devices(cfg.devices), cfg.backend.interface
    # Other backends move bytes between the CPUs of both ends.
    ends = (devices.storing_device or "cpu", devices.policy_device or "cpu") if backend == "nccl" else ("cpu", "cpu")
    addresses = ("127.0.0.1",) if launcher.is_local and interface is None else local_addresses(interface)
    network = NetworkTransport(
        slab,
        supervisor,
        Endpoint(addresses, cfg.backend.port or 0, new_secret()),
        lambda worker, life: spec_of(worker, life).to_json(),
        options.worker_timeout_s,
        events,
        backend,
        ends,
        cfg.backend.tensorpipe if isinstance(cfg.backend, RpcBackendConfig) else None,
        interface,
    )

    def entry(worker: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        objects = spec_of(worker, lives[worker]).user_objects
        return run_remote_worker, (network.endpoint, worker, options.start_timeout_s, objects, build)

    launcher.prepare(entry, network.endpoint)
    return network


def _nested_spec(cfg: RunConfig) -> NestedSpec | None:
    """The collector that each worker runs; None if workers are single processes."""
    options = cfg.collector
    if options.num_workers_per_collector == 1:
        return None
    values: dict[str, Any] = {each.name: getattr(options, each.name) for each in dataclasses.fields(CollectorConfig)}
    values |= {
        "kind": f"multi_{options.inner}",
        "num_workers": options.num_workers_per_collector,
        "frames_per_batch": options.frames_per_batch // (options.num_workers if is_stacked(options) else 1),
        "total_frames": -1,
        "zero_copy": True,
        "on_worker_failure": "raise",
        "min_workers": None,
        "max_policy_lag": None,
        "num_workers_per_collector": 1,
        "init_random_frames": -(-(options.init_random_frames or 0) // options.num_workers),
    }
    launcher = LauncherConfig(
        kind="local", hydra_mode=None, num_threads=cfg.launcher.num_threads, pin_cores=cfg.launcher.pin_cores
    )
    return NestedSpec(CollectorConfig(**values), launcher)


def resolve_devices(devices: DevicesConfig) -> DevicesConfig:
    """TorchRL's rule: `device` is the default of the other three; without it, batches stay on the device of both the
    policy and the envs."""
    device = devices.device
    policy, env = devices.policy_device or device, devices.env_device or device
    return DevicesConfig(
        device=device,
        storing_device=devices.storing_device or device or (policy if policy == env else None),
        policy_device=policy,
        env_device=env,
    )
