"""Composes a collector from a configuration: a schedule, and workers in a place. Any schedule works with any place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from collectx import policy as policies
from collectx.batch import batch_leaves, nested_dims
from collectx.collector.batch_info import BatchSpec, part_shape, workers_write
from collectx.collector.collector import CollectorCore
from collectx.collector.pool import Channel, WorkerPool
from collectx.collector.saved_state import CollectorState, first_requests, next_histories
from collectx.collector.worker_record import FailurePolicy
from collectx.config.derived import frames_per_part, is_elastic, num_workers_of, resolve_devices, total_batches
from collectx.config.schema.collector import CollectorConfig, ServerInferenceConfig
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig, RpcBackendConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import TrainerConfig
from collectx.env.base import EnvSpec
from collectx.env.infos import declare
from collectx.place import place_of
from collectx.place.base import Place
from collectx.place.launcher import Entry, Launcher
from collectx.policy.base import Actor
from collectx.policy.flat_weights import FlatWeights, device_of
from collectx.policy.random import RandomActor
from collectx.policy.recurrent import spec_with_states
from collectx.rollout.wrappers import RolloutOptions
from collectx.rules import fits
from collectx.schedule.asynchronous import AsyncSchedule, BoundedLagSchedule
from collectx.schedule.base import Schedule
from collectx.schedule.recorded import RecordedBatch, RecordedSchedule
from collectx.schedule.sync import PreemptiveSchedule, SyncSchedule
from collectx.transport.base import SlotSpec
from collectx.transport.leases import NUM_SPARE
from collectx.transport.slab import SlabTransport
from collectx.user_objects import Sealed
from collectx.worker.inference.rollout import ServedActor
from collectx.worker.spec import ConfigOverrides, Placement, ProcessExtras, ProcessHistory, ProcessSpec


def start_collector(
    cfg: RunConfig,
    policy: Callable | None,
    spec: EnvSpec,
    events: Callable[..., None] = lambda name, **fields: None,
    log_dir: Path | None = None,
    launcher: Launcher | None = None,
    overrides: Sequence[ConfigOverrides] = (),
    recorded: Sequence[RecordedBatch] | None = None,
    resume: CollectorState | None = None,
    outer: Placement | None = None,
) -> CollectorCore:
    """Starts the workers; returns the collector over them. Does not wait until the workers are ready.

    Args:
        cfg: the run's configuration.
        policy: the trainer's policy (see `collectx.policy.build`); its weights become version 0.
        spec: the spec of the env group in one worker process.
        events: called as `events(name, **fields)` when workers have started, joined, or failed.
        log_dir: the folder of the worker logs; None: worker processes write to the terminal.
        launcher: starts the workers; None: the launcher of `cfg.launcher`.
        overrides: the differences of each worker's configuration from `cfg`; empty: none. All workers must make the
            same number of envs, with the same spaces.
        recorded: the record of another async run, whose batches this collector then delivers.
        resume: the state of a collector to continue (`collectx.collector.saved_state`). Publishes its weights instead
            of the policy's. Call `CollectorCore.load` next.
        outer: the worker in which this nested collector runs, or the learner; None for a run's only collector.

    Raises:
        ConfigError, DataError: the policy does not fit the env, or the env does not support the resets of
            `cfg.collector`.
        LauncherError: the workers cannot be started.
    """
    options, num_workers = cfg.collector, num_workers_of(cfg.collector)
    is_joining = is_elastic(options) and recorded is None
    # Batches that workers write to a replay buffer must all be counted.
    wait_for_all = workers_write(overrides)
    schedule = _make_schedule(options, 0 if is_joining else num_workers, recorded, wait_for_all)
    fits.check(cfg, spec, has_interruptor=any(each.should_end is not None for each in overrides))
    spec = RolloutOptions.of(options).env_spec(spec)
    # Only for the shapes of its outputs and weights.
    actor, spec = policies.configured_actor(cfg, policy, spec, device_of(policy))
    slots = _slot_spec(cfg, spec, actor, schedule, 0 if resume is None else resume["version"])
    fits.check_slots(cfg, spec, actor, slots)
    place, served = place_of(cfg), _served(cfg, actor)
    launcher = launcher or place.launcher(log_dir)
    channel = open_channel(place, launcher, slots, spec, served is not None, events)
    transport = channel.transport
    if isinstance(schedule, PreemptiveSchedule):
        schedule.preempt = transport.preempt
    if isinstance(transport, SlabTransport):
        transport.slab.leases.on_lack = partial(events, "batches_copied")
    pool = WorkerPool(
        launcher,
        channel,
        SpecMaker(cfg, overrides, spec.num_envs, outer, served, spec.infos).make,
        schedule,
        FailurePolicy(options.on_worker_failure, options.max_restarts, options.min_workers or 1, launcher.max_requeues),
        events,
        num_workers=num_workers,
        min_workers=options.min_workers or num_workers,
        histories={} if resume is None else next_histories(resume),
        first_requests=partial(first_requests, resume) if is_joining else None,
        seed=cfg.seed,
        normalizers=spec.normalizers,
    )
    collector = CollectorCore(transport, schedule, _batch_spec(cfg, spec, slots, overrides), pool)
    try:
        if resume is None:
            collector.publish(policy if isinstance(policy, nn.Module) else actor.module)
        else:
            collector.publish_weights({None: lambda buffer: buffer.copy_(resume["weights"])})
        pool.start_all()
    except BaseException:
        collector.close()
        raise
    events("workers_started", num_workers=num_workers, backend=place.backend, launcher=cfg.launcher.kind)
    return collector


def _batch_spec(cfg: RunConfig, spec: EnvSpec, slots: SlotSpec, overrides: Sequence[ConfigOverrides]) -> BatchSpec:
    options, device = cfg.collector, resolve_devices(cfg.devices).storing_device
    return BatchSpec(
        slots=slots,
        shape=part_shape(spec, options),
        nested_dims=nested_dims(spec.nested_dims, slots.leaves),
        stacked=options.schedule == "sync",
        total_frames=options.total_frames,
        check_finite=options.check_finite,
        zero_copy=options.zero_copy,
        storing_device=None if device is None else torch.device(device),
        is_written=workers_write(overrides),
        num_envs=None if any(each.user_collector for each in overrides) else slots.rows * slots.num_workers,
        has_gaps=options.preemptive_threshold is not None,
    )


def slot_spec_of(cfg: RunConfig, policy: Callable | None, spec: EnvSpec) -> SlotSpec:
    """Returns the layout of the slots and weights that `start_collector` would allocate. Starts no process."""
    options = cfg.collector
    schedule = _make_schedule(options, num_workers_of(options), None, wait_for_all=False)
    fits.check(cfg, spec)
    spec = RolloutOptions.of(options).env_spec(spec)
    actor, spec = policies.configured_actor(cfg, policy, spec, device_of(policy))
    return _slot_spec(cfg, spec, actor, schedule, 0)


def open_channel(
    place: Place, launcher: Launcher, slots: SlotSpec, spec: EnvSpec, is_served: bool, events: Callable[..., None]
) -> Channel:
    """Returns the channel to the workers of a place; starts none of them. Raises `LauncherError` if this process may
    not open enough files. `is_served` says whether an inference server acts for the workers; `events` is called when
    the trainer refuses a peer."""
    if place.is_inline:
        return _inline(slots, spec)
    from collectx.place.local_launcher import allow_descriptors
    from collectx.transport.supervisor import Supervisor

    options = place.cfg.collector
    allow_descriptors(options.num_workers, launcher.is_local, is_served)
    supervisor: Supervisor[Any] = Supervisor(
        options.start_timeout_s,
        options.worker_timeout_s,
        options.close_timeout_s,
        launcher.describe,
        launcher.join_timeout,
        num_steps=slots.steps,
        log_size=launcher.log_size,
        waiting=launcher.waiting,
        events=events,
    )
    if place.shares_memory:
        return _sharing_memory(slots, spec, is_served, supervisor)
    return _over_network(place, launcher, slots, supervisor, events)


def _inline(slots: SlotSpec, env_spec: EnvSpec) -> Channel:
    from collectx.transport.inline import InlineTransport
    from collectx.worker.entry import inline_worker

    inline = InlineTransport(slots, env_spec.device)
    return Channel(inline, lambda spec: (inline_worker, (spec, inline.link(spec.worker))))


def _sharing_memory(slots: SlotSpec, env_spec: EnvSpec, is_served: bool, supervisor: Any) -> Channel:
    from collectx.transport.inference_channel import InferenceChannel
    from collectx.transport.shared_memory import SharedMemoryTransport
    from collectx.worker.entry import run_worker
    from collectx.worker.inference.server import run_inference_server

    channel = InferenceChannel(slots.num_workers) if is_served else None
    shared = SharedMemoryTransport(slots, supervisor, channel)

    def run(spec: ProcessSpec) -> Entry:
        return run_worker, (Sealed.of(spec), shared.link(spec.worker, spec.placement.incarnation))

    if channel is None:
        return Channel(shared, run)
    served, end = dataclasses.replace(env_spec, draw=None), channel.server()

    def serve(spec: ProcessSpec) -> Entry:
        return run_inference_server, (Sealed.of((spec, served)), shared.link(spec.worker), end)

    return Channel(shared, run, serve)


def _over_network(
    place: Place, launcher: Launcher, slots: SlotSpec, supervisor: Any, events: Callable[..., None]
) -> Channel:
    from collectx.transport.network.addresses import local_addresses
    from collectx.transport.network.handshake import Endpoint, new_secret
    from collectx.transport.network.transport import NetworkTransport
    from collectx.worker.entry import run_remote_worker

    options, backend = place.cfg.collector, place.cfg.backend
    is_loopback = launcher.is_local and backend.interface is None
    addresses = ("127.0.0.1",) if is_loopback else local_addresses(backend.interface)
    network = NetworkTransport(
        slots,
        supervisor,
        Endpoint(addresses, backend.port or 0, new_secret()),
        timeout_s=options.worker_timeout_s,
        events=events,
        backend=place.backend,
        devices=place.devices_of_pairs,
        options=getattr(backend, "tensorpipe", None),
        interface=backend.interface,
    )
    # Without the transport, which cannot be pickled.
    endpoint, start_timeout_s = network.endpoint, options.start_timeout_s
    # A nested worker starts a collector itself, but its package is below this one and cannot import this function.
    start_nested = start_collector if options.num_workers_per_collector > 1 else None

    def run(spec: ProcessSpec) -> Entry:
        objects = Sealed.of(spec.user_objects)
        return run_remote_worker, (endpoint, spec.worker, start_timeout_s, objects, start_nested)

    return Channel(network, run, endpoint=endpoint)


class SpecMaker:
    """Makes the worker specs of one collector.

    Args:
        overrides: the differences of each worker, including those that are added later; empty: none.
        outer: the worker or learner that runs the collector; None for a run's only collector.
        infos: see `EnvSpec`; declared to the workers, so that they need not find them.
    """

    def __init__(
        self,
        cfg: RunConfig,
        overrides: Sequence[ConfigOverrides],
        num_envs: int,
        outer: Placement | None = None,
        served: ServedActor | None = None,
        infos: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._served = served
        self._cfg = _worker_config(cfg)
        self._overrides = overrides
        self._num_envs, self._infos = num_envs, infos
        self._num_workers = num_workers_of(cfg.collector)
        self._visible_devices = cfg.backend.visible_devices if isinstance(cfg.backend, RpcBackendConfig) else None
        self._processes = cfg.collector.num_workers_per_collector  # of each worker
        self._outer = outer or Placement(worker=0, run_index=0, num_workers=self._num_workers * self._processes)

    def make(self, worker: int, history: ProcessHistory, is_server: bool = False) -> ProcessSpec:
        """Returns the spec of a worker's process with this history; with `is_server`, the spec of the inference server,
        which has the env and the device of the first worker."""
        if is_server:
            index = self._outer.num_workers + self._outer.run_index  # after those of all workers
            placement = Placement(worker=worker, run_index=index, num_workers=self._outer.num_workers)
            return dataclasses.replace(self.make(0, history), placement=placement, served=None)
        overrides = self._overrides[worker] if self._overrides else ConfigOverrides()
        collector = self._cfg.collector
        if overrides.exploration_type is not None:
            collector = dataclasses.replace(collector, exploration_type=overrides.exploration_type)
        cfg = dataclasses.replace(
            self._cfg,
            env=declare(overrides.env or self._cfg.env, self._infos),
            policy=overrides.policy or self._cfg.policy,
            devices=overrides.devices or self._cfg.devices,
            collector=collector,
        )
        extras = {field.name: getattr(overrides, field.name) for field in dataclasses.fields(ProcessExtras)}
        placement = self._placement(worker, history)
        return ProcessSpec(cfg, placement, self._num_envs, self._served, **extras)

    def _placement(self, worker: int, history: ProcessHistory) -> Placement:
        outer, index = self._outer, worker % self._num_workers
        return Placement(
            worker=worker,
            run_index=outer.run_index * self._num_workers + index,
            num_workers=outer.num_workers,
            incarnation=outer.incarnation + history.incarnation,
            visible_device=self._visible_devices[index] if self._visible_devices else None,
            env_index=outer.env_index + worker * self._processes * self._num_envs,
            worker_index=outer.worker_index + worker * self._processes,
            restart_count=outer.restart_count + history.restart_count,
        )


def _worker_config(cfg: RunConfig) -> RunConfig:
    """Returns `ProcessSpec.cfg` without overrides: the parts of the run's configuration that workers use, so that
    nothing else is pickled to them."""
    launcher = LauncherConfig(kind="local", num_threads=cfg.launcher.num_threads, pin_cores=cfg.launcher.pin_cores)
    policy_device = resolve_devices(cfg.devices).policy_device
    return RunConfig(
        env=cfg.env,
        policy=cfg.policy,
        collector=dataclasses.replace(cfg.collector),
        backend=BackendConfig(kind="shared_memory"),
        launcher=launcher,
        devices=DevicesConfig(device=None, policy_device=policy_device),
        trainer=TrainerConfig(kind="meter"),
        seed=cfg.seed,
        inference=cfg.inference,
    )


def _served(cfg: RunConfig, actor: Actor) -> ServedActor | None:
    """Returns the workers' stand-in for a policy that the inference server calls; None if the workers act
    themselves."""
    is_served = isinstance(cfg.inference, ServerInferenceConfig) and not isinstance(actor, RandomActor)
    return ServedActor(actor.leaves, actor.states) if is_served else None


def _slot_spec(cfg: RunConfig, spec: EnvSpec, actor: Actor, schedule: Schedule, first_version: int) -> SlotSpec:
    options = cfg.collector
    rows = math.prod(part_shape(spec, options))
    observation = spec_with_states(spec, actor.states).observation
    omitted = {leaf.key[1:] for leaf in spec.deltas}
    if options.compact_obs:
        omitted = {leaf.key for leaf in observation if leaf not in spec.agents_ends}
    is_on_cpu = spec.device is None and torch.device(resolve_devices(cfg.devices).storing_device or "cpu").type == "cpu"
    is_leased = is_on_cpu and place_of(cfg).network is None and not options.zero_copy
    return SlotSpec(
        leaves=batch_leaves(observation, actor.leaves, omitted, spec.next_only_leaves),
        rows=rows,
        steps=frames_per_part(options) // rows,
        num_workers=num_workers_of(options),
        num_slots=schedule.num_slots,
        stacked=schedule.stacked,
        require_latest=schedule.require_latest,
        grants_name_version=schedule.grants_name_version,
        weights_nbytes=FlatWeights(actor.module).nbytes,
        first_version=first_version,
        num_spare=NUM_SPARE if is_leased else 0,
    )


def _make_schedule(
    options: CollectorConfig, num_workers: int, recorded: Sequence[RecordedBatch] | None, wait_for_all: bool
) -> Schedule:
    num_batches = total_batches(options)
    if options.schedule != "async":
        if options.preemptive_threshold is not None:
            return PreemptiveSchedule(num_workers, options.preemptive_threshold)
        return SyncSchedule(num_workers, options.overlap, num_batches)
    if recorded is not None:
        return RecordedSchedule(num_workers, options.num_slots, num_batches, recorded, options.zero_copy)
    if options.max_policy_lag is not None:
        return BoundedLagSchedule(num_workers, options.num_slots, num_batches, wait_for_all, options.max_policy_lag)
    return AsyncSchedule(num_workers, options.num_slots, num_batches, wait_for_all)
