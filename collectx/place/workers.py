"""The workers of one collector, as its pool sees them.

    expect   allows one process of a worker to connect, and returns its spec
    start    starts that process, and watches it
    request  sends a request to a started worker

Batches and weights travel over the transport, which the collector uses directly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from collectx.place.launcher import AnyHandle, Entry, Launcher
from collectx.transport.base import Request, SlotSpec, Transport
from collectx.transport.network.handshake import Endpoint
from collectx.user_objects import Sealed
from collectx.worker.spec import ProcessHistory, ProcessSpec

if TYPE_CHECKING:
    from collectx.env.base import EnvSpec
    from collectx.place.base import Place


class Specs(Protocol):
    """Makes the specs of a collector's processes: what each one is sent before it begins. `is_served` says whether an
    inference server acts for the workers."""

    @property
    def is_served(self) -> bool: ...
    def make(self, worker: int, history: ProcessHistory) -> ProcessSpec: ...
    def make_server(self, index: int) -> ProcessSpec: ...


class Workers:
    """The worker processes, and the transport between workers and trainer. `has_server` says whether there is an
    inference server; its index follows the last worker's.

    Args:
        entry: `entry(spec)` returns what a worker process calls.
        endpoint: where the trainer listens; None without a network.
        server_entry: like `entry`, for the inference server; None without one.
    """

    def __init__(
        self,
        launcher: Launcher,
        transport: Transport,
        specs: Specs,
        entry: Callable[[ProcessSpec], Entry],
        endpoint: Endpoint | None = None,
        server_entry: Callable[[ProcessSpec], Entry] | None = None,
    ):
        self.transport = transport
        self.has_server = server_entry is not None
        self.max_requeues = launcher.max_requeues
        self._launcher = launcher
        self._specs = specs
        self._entry = entry
        self._endpoint = endpoint
        self._server_entry = server_entry

    def expect(self, worker: int, history: ProcessHistory, is_server: bool = False) -> ProcessSpec:
        """Allows the worker's process with this history to connect; returns its spec."""
        spec = self._specs.make_server(worker) if is_server else self._specs.make(worker, history)
        self.transport.expect(worker, spec.to_json)
        return spec

    def announce(self) -> None:
        if self._endpoint is not None:
            self._launcher.announce(self._endpoint)

    def start(
        self, worker: int, spec: ProcessSpec, num_replaced: int, previous: AnyHandle | None, is_server: bool = False
    ) -> AnyHandle | None:
        """Starts an expected process; see `Launcher.start`."""
        entry = self._server_entry if is_server else self._entry
        assert entry is not None
        handle = self._launcher.start(worker, entry(spec), num_replaced, previous)
        if handle is not None:
            self.transport.attach(worker, handle)
        return handle

    def request(self, worker: int, request: Request) -> None:
        self.transport.send_request(worker, request)


def open_workers(
    place: Place,
    slot_spec: SlotSpec,
    specs: Specs,
    env_spec: EnvSpec,
    events: Callable[..., None],
    start_collector: Callable[..., Any],
    launcher: Launcher | None = None,
    log_dir: Path | None = None,
) -> Workers:
    """Makes launcher and transport of a place, and returns both as `Workers`. Connects to the place's scheduler, but
    starts no worker. Raises `LauncherError` if this process cannot start the workers of this place, or may not open
    enough files.

    Args:
        events: called as `events(name, **fields)` when the trainer refuses a peer.
        start_collector: `collectx.collector.start_collector`, for workers that are collectors themselves.
        launcher: starts the workers; None: the place's own.
    """
    launcher = launcher or place.launcher(log_dir)
    if place.is_inline:
        return _inline(launcher, slot_spec, specs, env_spec)
    from collectx.place.local_launcher import allow_descriptors
    from collectx.transport.supervisor import Supervisor

    options = place.cfg.collector
    allow_descriptors(options.num_workers, launcher.is_local, specs.is_served)
    supervisor: Supervisor[Any] = Supervisor(
        options.start_timeout_s,
        options.worker_timeout_s,
        options.close_timeout_s,
        launcher.describe,
        launcher.join_timeout,
        num_steps=slot_spec.steps,
        log_size=launcher.log_size,
    )
    if place.shares_memory:
        return _sharing_memory(launcher, slot_spec, specs, env_spec, supervisor)
    return _over_network(place, launcher, slot_spec, specs, supervisor, events, start_collector)


def _inline(launcher: Launcher, slot_spec: SlotSpec, specs: Specs, env_spec: EnvSpec) -> Workers:
    from collectx.transport.inline import InlineTransport
    from collectx.worker.entry import inline_worker

    inline = InlineTransport(slot_spec, env_spec.device)
    return Workers(launcher, inline, specs, lambda spec: (inline_worker, (spec, inline.link(spec.worker))))


def _sharing_memory(
    launcher: Launcher, slot_spec: SlotSpec, specs: Specs, env_spec: EnvSpec, supervisor: Any
) -> Workers:
    from collectx.transport.inference_channel import InferenceChannel
    from collectx.transport.shared_memory import SharedMemoryTransport
    from collectx.worker.entry import run_worker
    from collectx.worker.inference.server import run_inference_server

    channel = InferenceChannel(slot_spec.num_workers) if specs.is_served else None
    shared = SharedMemoryTransport(slot_spec, supervisor, channel)

    def run(spec: ProcessSpec) -> Entry:
        return run_worker, (Sealed.of(spec), shared.link(spec.worker, spec.placement.incarnation))

    if channel is None:
        return Workers(launcher, shared, specs, run)
    launcher.names[slot_spec.num_workers] = "inference server"
    served, end = dataclasses.replace(env_spec, draw=None), channel.server()

    def serve(spec: ProcessSpec) -> Entry:
        return run_inference_server, (Sealed.of((spec, served)), shared.link(spec.worker), end)

    return Workers(launcher, shared, specs, run, server_entry=serve)


def _over_network(
    place: Place,
    launcher: Launcher,
    slot_spec: SlotSpec,
    specs: Specs,
    supervisor: Any,
    events: Callable[..., None],
    start_collector: Callable[..., Any],
) -> Workers:
    from collectx.transport.network.addresses import local_addresses
    from collectx.transport.network.handshake import new_secret
    from collectx.transport.network.transport import NetworkTransport
    from collectx.worker.entry import run_remote_worker

    options, backend = place.cfg.collector, place.cfg.backend
    is_loopback = launcher.is_local and backend.interface is None
    addresses = ("127.0.0.1",) if is_loopback else local_addresses(backend.interface)
    network = NetworkTransport(
        slot_spec,
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
    start_nested = start_collector if options.num_workers_per_collector > 1 else None

    def run(spec: ProcessSpec) -> Entry:
        objects = Sealed.of(spec.user_objects)
        return run_remote_worker, (endpoint, spec.worker, start_timeout_s, objects, start_nested)

    return Workers(launcher, network, specs, run, endpoint)
