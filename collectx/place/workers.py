"""The workers of one collector, as its pool sees them: they are expected, started and asked.

    expect   allows one process of a worker to connect, and makes its spec
    start    starts that process where the place has its workers, and watches it
    request  asks a worker that has started

Batches and weights travel by the transport, which the collector uses itself.
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
from collectx.worker.spec import ProcessSpec

if TYPE_CHECKING:
    from collectx.env.base import EnvSpec
    from collectx.place.base import Place


class Specs(Protocol):
    """What the processes of a collector are told.

    Attributes:
        is_served: whether an inference server acts for the workers.
    """

    @property
    def is_served(self) -> bool: ...
    def make(self, worker: int, incarnation: int) -> ProcessSpec: ...
    def make_server(self, index: int, incarnation: int) -> ProcessSpec: ...


class Workers:
    """The processes of the workers, and the transport between them and the trainer.

    Args:
        launcher: starts the processes.
        transport: to and from them.
        specs: what they are told.
        entry: `entry(spec)` returns what the process of a worker calls.
        endpoint: where the trainer listens for workers; None if they do not connect over a network.
        server_entry: as `entry`, of the inference server; None if there is none.

    Attributes:
        transport: see above.
        has_server: whether there is an inference server; its index follows that of the last worker.
        max_requeues: see `Launcher`.
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

    def expect(self, worker: int, incarnation: int, is_server: bool = False) -> ProcessSpec:
        """Lets a process of a worker's incarnation connect; returns its spec."""
        spec = (self._specs.make_server if is_server else self._specs.make)(worker, incarnation)
        self.transport.expect(worker, spec.to_json)
        return spec

    def announce(self) -> None:
        """Publishes where the trainer listens, for workers that other programs start."""
        if self._endpoint is not None:
            self._launcher.announce(self._endpoint)

    def start(
        self, worker: int, spec: ProcessSpec, restarts: int, previous: AnyHandle | None, is_server: bool = False
    ) -> AnyHandle | None:
        """Starts the process that is expected; see `Launcher.start`."""
        entry = self._server_entry if is_server else self._entry
        assert entry is not None
        handle = self._launcher.start(worker, entry(spec), restarts, previous)
        if handle is not None:
            self.transport.attach(worker, handle)
        return handle

    def request(self, worker: int, request: Request) -> None:
        """See `Transport.send_request`."""
        self.transport.send_request(worker, request)


def open_workers(
    place: Place,
    batch: SlotSpec,
    specs: Specs,
    env_spec: EnvSpec,
    events: Callable[..., None],
    build: Callable[..., Any],
    launcher: Launcher | None = None,
    log_dir: Path | None = None,
) -> Workers:
    """Makes the transport of a place. Starts no worker, but connects to the scheduler of the place.

    Args:
        batch: the slots and weights.
        env_spec: of one worker's envs.
        events: called as `events(name, **fields)` when a peer was refused.
        build: `collectx.collector.build`, for workers that are collectors themselves.
        launcher: starts the workers; None: that of the place.
        log_dir: see `Place.launcher`.

    Raises:
        LauncherError: the place cannot start workers from this process; or this process may not open enough files.
    """
    launcher = launcher or place.launcher(log_dir)
    if place.is_inline:
        return _inline(launcher, batch, specs, env_spec)
    from collectx.place.processes import allow_descriptors
    from collectx.transport.supervisor import Supervisor

    options = place.cfg.collector
    allow_descriptors(options.num_workers * (2 if specs.is_served else 1), launcher.is_local)
    supervisor: Supervisor[Any] = Supervisor(
        options.start_timeout_s,
        options.worker_timeout_s,
        options.close_timeout_s,
        launcher.describe,
        launcher.join_timeout,
        num_steps=batch.steps,
    )
    if place.shares_memory:
        return _sharing_memory(launcher, batch, specs, env_spec, supervisor)
    return _over_network(place, launcher, batch, specs, supervisor, events, build)


def _inline(launcher: Launcher, batch: SlotSpec, specs: Specs, env_spec: EnvSpec) -> Workers:
    from collectx.transport.inline import InlineTransport
    from collectx.worker.entry import inline_worker

    inline = InlineTransport(batch, env_spec.device)
    return Workers(launcher, inline, specs, lambda spec: (inline_worker, (spec, inline.link(spec.worker))))


def _sharing_memory(launcher: Launcher, batch: SlotSpec, specs: Specs, env_spec: EnvSpec, supervisor: Any) -> Workers:
    from collectx.transport.inference import InferenceChannel
    from collectx.transport.shared_memory import SharedMemoryTransport
    from collectx.worker.entry import run_worker
    from collectx.worker.inference.server import run_inference_server

    channel = InferenceChannel(batch.num_workers) if specs.is_served else None
    shared = SharedMemoryTransport(batch, supervisor, channel)

    def run(spec: ProcessSpec) -> Entry:
        return run_worker, (Sealed.of(spec), shared.link(spec.worker, spec.placement.incarnation))

    if channel is None:
        return Workers(launcher, shared, specs, run)
    launcher.names[batch.num_workers] = "inference server"
    served, end = dataclasses.replace(env_spec, draw=None), channel.server()

    def serve(spec: ProcessSpec) -> Entry:
        return run_inference_server, (Sealed.of((spec, served)), shared.link(spec.worker), end)

    return Workers(launcher, shared, specs, run, server_entry=serve)


def _over_network(
    place: Place,
    launcher: Launcher,
    batch: SlotSpec,
    specs: Specs,
    supervisor: Any,
    events: Callable[..., None],
    build: Callable[..., Any],
) -> Workers:
    from collectx.transport.network.addresses import local_addresses
    from collectx.transport.network.handshake import new_secret
    from collectx.transport.network.transport import NetworkTransport
    from collectx.worker.entry import run_remote_worker

    options, backend = place.cfg.collector, place.cfg.backend
    is_loopback = launcher.is_local and backend.interface is None
    addresses = ("127.0.0.1",) if is_loopback else local_addresses(backend.interface)
    network = NetworkTransport(
        batch,
        supervisor,
        Endpoint(addresses, backend.port or 0, new_secret()),
        options.worker_timeout_s,
        events,
        place.backend,
        place.devices_of_pairs,
        getattr(backend, "tensorpipe", None),
        backend.interface,
    )
    # Without the transport, which cannot be pickled.
    endpoint, start_timeout_s = network.endpoint, options.start_timeout_s
    build_nested = build if options.num_workers_per_collector > 1 else None

    def run(spec: ProcessSpec) -> Entry:
        objects = Sealed.of(spec.user_objects)
        return run_remote_worker, (endpoint, spec.worker, start_timeout_s, objects, build_nested)

    return Workers(launcher, network, specs, run, endpoint)
