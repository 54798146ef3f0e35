"""`launcher=ray`: workers are Ray actors. Imports ray.

`WorkerActor` runs in a worker process. Ray starts and ends workers; batches and weights travel over a network backend.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import ray
import torch

from collectx.config.schema.launcher import RayLauncherConfig
from collectx.place import ray_cluster
from collectx.place.launcher import AnyHandle, Entry, Launcher, RemoteHandle
from collectx.transport.handles import Handle, Limit


class RayLauncher(Launcher):
    """Starts an actor for each worker, on any node with the requested resources. Connects this process to Ray. `cfg` is
    the launcher's options, read at every start: `remote_configs` grows when workers are added."""

    def __init__(self, cfg: RayLauncherConfig, num_workers: int, start_timeout_s: float):
        super().__init__(join_timeout=("collector.start_timeout_s", start_timeout_s))
        self._cfg = cfg
        self._start_timeout_s = start_timeout_s
        # By handle, an object of Ray that is ready when the actor's process has started.
        self._started: WeakKeyDictionary[RemoteHandle, Any] = WeakKeyDictionary()
        ray_cluster.connect(cfg.ray_init_config, start_timeout_s)
        if not cfg.autoscaling:
            configs = [self._remote_config(worker) for worker in range(num_workers)]
            ray_cluster.check_resources("launcher.remote_configs", configs, start_timeout_s)

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> RemoteHandle:
        """Starts an actor; pickles `entry`. Does not block."""
        actor = _actor_class(self._remote_config(worker)).remote()
        text = f"Ray actor {actor._actor_id.hex()}"
        handle = RemoteHandle(_kill, lambda handle: not self._is_waiting(handle), text)
        handle.actor, self._started[handle] = actor, actor.ready.remote()
        work = actor.work.remote(sys.path, self._cfg.num_threads, pickle.dumps(entry)).future()
        work.add_done_callback(functools.partial(_finish, handle))
        return handle

    def _is_waiting(self, handle: Any) -> bool:
        """Whether Ray may still start the worker's actor."""
        # Without a connection, `ray.wait` would start a cluster.
        return handle is not None and ray.is_initialized() and not ray.wait([self._started[handle]], timeout=0)[0]

    def describe(self, worker: int, handle: Handle | None = None) -> str:
        if not self._is_waiting(handle):
            return super().describe(worker, handle)
        resources = ray_cluster.describe_request(self._remote_config(worker))
        nodes = ray_cluster.describe_resources(self._start_timeout_s)
        return f"worker {worker} (not yet started by Ray: it asks for {resources}. {nodes})"

    def join_timeout(self, worker: int, handle: Handle | None = None) -> Limit | None:
        if self._is_waiting(handle):
            return "launcher.queue_timeout_s", self._cfg.queue_timeout_s
        return super().join_timeout(worker, handle)

    def _remote_config(self, worker: int) -> dict[str, Any]:
        configs: dict[str, Any] | Sequence[dict[str, Any]] = self._cfg.remote_configs
        return configs if isinstance(configs, dict) else configs[worker]


def objections(configs: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Returns Ray's objections to the workers' arguments of `ray.remote`, each once."""
    found = []
    for config in configs:
        try:
            _actor_class(config)
        except (TypeError, ValueError, OverflowError) as error:
            found.append(str(error))
    return list(dict.fromkeys(found))


def _actor_class(config: Mapping[str, Any] | None) -> Any:
    # With one thread, Ray calls the methods in the main thread of the actor's process.
    make: Any = ray.remote(**{"max_restarts": 0, **(config or {}), "max_concurrency": 1})
    return make(WorkerActor)


class WorkerActor:
    """The actor of a worker, an object in the worker's process."""

    def ready(self) -> None:
        """Returns once the actor's process has started."""

    def work(self, path: list[str], num_threads: int, call: bytes) -> None:
        """Runs the worker: calls the function that the pickle `call` contains. Returns when the worker ends."""
        # The pickle may refer to modules on the trainer's path.
        sys.path[:] = path
        torch.set_num_threads(num_threads)
        function, arguments = pickle.loads(call)
        function(*arguments)


def _kill(handle: RemoteHandle, signum: int) -> None:
    if ray.is_initialized():
        with contextlib.suppress(Exception):
            ray.kill(handle.actor)


def _finish(handle: RemoteHandle, work: Any) -> None:
    """Finishes a handle, with the cause in its text, when the worker's function has returned or raised."""
    error = work.exception()
    if error is not None:
        # The first line names the actor, the last one the cause; lines of fields stand between them.
        lines = [line for line in str(error).splitlines() if line and not line.startswith(("\t", " "))]
        handle.text += f": {' '.join(lines[:1] + lines[1:][-1:])}"
    handle.finish(0 if error is None else 1)
