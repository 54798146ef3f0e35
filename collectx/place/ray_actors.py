"""`launcher=ray`: workers, or learners, are Ray actors. Imports ray.

Ray starts and ends workers (`collectx.place.ray_worker`); batches and weights travel over a network backend.

Also connects the trainer's process to a Ray cluster, and checks whether the cluster has room for the workers.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pickle
import re
import secrets
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import ray

from collectx import hydra_state
from collectx.config.problem import YAML, counted, opt
from collectx.config.schema.launcher import RayLauncherConfig
from collectx.errors import LauncherError
from collectx.place.launcher import AnyHandle, Entry, Launcher, RemoteHandle
from collectx.place.ray_worker import WorkerActor, run_learner
from collectx.process import handling, limited
from collectx.transport.network.handshake import Endpoint
from collectx.transport.peer import Handle, Limit

_T = TypeVar("_T")
_CONNECT_S = 10.0
_DEFAULTS: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
_AUTH_MODE = "RAY_AUTH_MODE"
_TOKEN = (
    f"If the cluster requires a token, set {_AUTH_MODE}=token, and copy ~/.ray/auth_token from its first node to this "
    "machine."
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Resources that Ray itself adds to each node.
_PREFIXES = ("node:", "object_store_memory")


def connect(options: Mapping[str, Any], timeout_s: float) -> None:
    """Connects this process to a Ray cluster by `ray.init(**options)`, unless it is connected already. Without an
    address in `options` or the environment variable RAY_ADDRESS, starts a cluster for this process. `timeout_s`, which
    is `collector.start_timeout_s`, has no effect outside the main thread. Raises `LauncherError` if no cluster answers
    at the address in time, or Ray refuses the arguments."""
    if ray.is_initialized():
        return
    # `ray.init` replaces the handler. Without one, Ray's stays.
    handler = signal.getsignal(signal.SIGTERM)
    handlers = {} if handler in (None, signal.SIG_DFL) else {signal.SIGTERM: handler}
    has_address = options.get("address") is not None or os.environ.get("RAY_ADDRESS")
    # Without an address, Ray would connect to any cluster on this host, even to one that ends with another run.
    address = {} if has_address else {"address": "local"}
    # Ray changes what it gets, and takes only strings as variables, where the command line has numbers.
    arguments = copy.deepcopy(dict(options))
    runtime_env = arguments.get("runtime_env")
    if isinstance(runtime_env, dict) and isinstance(variables := runtime_env.get("env_vars"), dict):
        runtime_env["env_vars"] = {str(name): YAML.show(value) for name, value in variables.items()}
    try:
        _check_address(str(options.get("address")))
        with handling(handlers), limited("ray.init", opt("collector.start_timeout_s"), timeout_s):
            ray.init(**(_DEFAULTS | arguments | address))
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        # Ray raises the same error for a missing token and a missing cluster.
        token = f" {_TOKEN}" if type(error) is ConnectionError and _AUTH_MODE not in os.environ else ""
        variable = os.environ.get("RAY_ADDRESS") if options.get("address") is None else None
        source = f"RAY_ADDRESS={variable}, " if variable else ""
        config = ", ".join(f"{name}: {value}" for name, value in options.items())
        is_refused = isinstance(error, ValueError | TypeError)
        advice = " Start a cluster with `ray start --head`, or leave the address out to start one on this machine."
        raise LauncherError(
            f"cannot connect to Ray ({source}{opt(f'launcher.ray_init_config={{{config}}}')}): "
            f"{str(error).rstrip('.')}.{token}{'' if is_refused else advice}"
        ) from error


def disconnect() -> None:
    """Ends this process's connection, and the cluster if `connect` started it. Idempotent."""
    ray.shutdown()


def _check_address(address: str) -> None:
    """Raises OSError at once if no process listens at `host:port`, because Ray itself retries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def _ask(failure: str, question: Callable[[], _T], timeout_s: float) -> _T:
    """Returns Ray's answer to `question`. Ray may wait forever, for example in a process that was forked after
    `ray.init`; the waiting thread then ends with this process."""
    answers: SimpleQueue[_T | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(question())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, name="collectx-ray", daemon=True).start()
    try:
        answer = answers.get(timeout=min(timeout_s, threading.TIMEOUT_MAX))
    except Empty:
        option = opt("collector.start_timeout_s")
        raise LauncherError(
            f"{failure} within {timeout_s:g} s ({option}={timeout_s:g}), so Ray's client hangs, as in a process that "
            f"was forked after ray.init. Call ray.shutdown() first, or raise {option}."
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _alive_nodes(timeout_s: float) -> list[dict[str, Any]]:
    return [node for node in _ask("Ray did not list its nodes", ray.nodes, timeout_s) if node["Alive"]]


def is_single_host(timeout_s: float) -> bool:
    """Whether all nodes of the cluster that this process is connected to are on this machine."""
    mine = ray.util.get_node_ip_address()
    return all(node["NodeManagerAddress"] == mine for node in _alive_nodes(timeout_s))


def check_resources(name: str, configs: Sequence[Mapping[str, Any]], timeout_s: float, role: str = "worker") -> None:
    """Checks that an otherwise idle cluster has room for the actors of `configs`, arguments of `ray.remote`. Ignores
    placement options. Messages name the option `name`, and call an actor `role`. `timeout_s` is how long Ray may
    take to answer, by `collector.start_timeout_s`. Raises `LauncherError` if one actor requests more than any node has,
    all actors together request more than the cluster has, or Ray does not answer."""
    nodes = [node["Resources"] for node in _alive_nodes(timeout_s)]
    advice = f"Ask for less, use fewer {role}s, or add nodes. (launcher.autoscaling=true waits for new nodes.)"
    requested = [_requested(config) for config in configs]
    for each in requested:
        if not any(_fits(each, node) for node in nodes):
            raise LauncherError(
                f"{name} asks for {_format(each)} per {role}, but no node of the Ray cluster has that. {advice} "
                f"{describe_resources(timeout_s)}"
            )
    total = {name: sum(each.get(name, 0.0) for each in requested) for name in set().union(*requested)}
    capacity = {name: sum(node.get(name, 0.0) for node in nodes) for name in total}
    if not _fits(total, capacity):
        raise LauncherError(
            f"{name} asks for {_format(total)} for {counted(len(requested), role)} together, but the Ray cluster "
            f"has less. {advice} {describe_resources(timeout_s)}"
        )


def describe_resources(timeout_s: float) -> str:
    """Returns a sentence that lists the resources of each node, and the free ones."""
    nodes = _alive_nodes(timeout_s)
    free = _ask("Ray did not list its free resources", ray._private.state.available_resources_per_node, timeout_s)
    lines = Counter(f"{_format(node['Resources'])} (free: {_format(free.get(node['NodeID'], {}))})" for node in nodes)
    return "Nodes: " + "; ".join(f"{count} with {line}" for line, count in lines.items()) + "."


def describe_request(config: Mapping[str, Any]) -> str:
    """Returns the resources that an actor with these arguments of `ray.remote` requests."""
    return _format(_requested(config))


def _requested(config: Mapping[str, Any]) -> dict[str, float]:
    """Returns the requested amounts by Ray's resource names. An actor without `num_cpus` needs no core."""
    requested = {str(name): float(count) for name, count in (config.get("resources") or {}).items()}
    for name, key in (("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "memory")):
        if config.get(key):
            requested[name] = float(config[key])
    return requested


def _fits(requested: Mapping[str, float], room: Mapping[str, float]) -> bool:
    # Ray counts in units of 0.0001.
    return all(count <= room.get(name, 0.0) + 1e-4 for name, count in requested.items())


def _format(resources: Mapping[str, float]) -> str:
    amounts = [
        f"{count / 2**30:.1f} GiB of memory" if name == "memory" else f"{count:g} {name}"
        for name, count in sorted(resources.items())
        if not name.startswith(_PREFIXES)
    ]
    return ", ".join(amounts) or "nothing"


class RayLauncher(Launcher):
    """Starts an actor for each worker, on any node with the requested resources. Connects this process to Ray. `cfg` is
    the launcher's options, read at every start: `remote_configs` grows when workers are added."""

    _role = "worker"

    def __init__(
        self,
        cfg: RayLauncherConfig,
        num_workers: int,
        start_timeout_s: float,
        log: Callable[[int], Path] | None = None,
    ):
        super().__init__(log, join_timeout=("collector.start_timeout_s", start_timeout_s))
        self._cfg = cfg
        self._start_timeout_s = start_timeout_s
        self._endpoint: Endpoint
        # By handle, an object of Ray that is ready when the actor's process has started.
        self._started: WeakKeyDictionary[RemoteHandle, Any] = WeakKeyDictionary()
        connect(cfg.ray_init_config, start_timeout_s)
        if not cfg.autoscaling:
            configs = [self._remote_config(worker) for worker in range(num_workers)]
            check_resources("launcher.remote_configs", configs, start_timeout_s, self._role)

    def announce(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> RemoteHandle:
        """Starts an actor; pickles `entry`. Does not block."""
        actor = _actor_class(self._remote_config(worker)).remote()
        text = f"Ray actor {actor._actor_id.hex()}"
        handle = RemoteHandle(_kill, lambda handle: not self._is_waiting(handle), text)
        handle.actor, self._started[handle] = actor, actor.ready.remote()
        limits = self._cfg.num_threads, self._endpoint, worker, self._start_timeout_s
        work = actor.work.remote(sys.path, *limits, pickle.dumps(entry)).future()
        work.add_done_callback(functools.partial(_finish, handle))
        return handle

    def _is_waiting(self, handle: Any) -> bool:
        """Whether Ray may still start the worker's actor."""
        # Without a connection, `ray.wait` would start a cluster.
        return handle is not None and ray.is_initialized() and not ray.wait([self._started[handle]], timeout=0)[0]

    def describe(self, worker: int, handle: Handle | None = None) -> str:
        waiting = self.waiting(worker, handle)
        return (
            f"{self.name(worker)} (not yet started by Ray: {waiting})" if waiting else super().describe(worker, handle)
        )

    def waiting(self, worker: int, handle: Handle | None = None) -> str:
        if not self._is_waiting(handle):
            return ""
        resources = describe_request(self._remote_config(worker))
        return f"it asks for {resources}. {describe_resources(self._start_timeout_s)}"

    def join_timeout(self, worker: int, handle: Handle | None = None) -> Limit | None:
        if self._is_waiting(handle):
            return "launcher.queue_timeout_s", self._cfg.queue_timeout_s
        return super().join_timeout(worker, handle)

    def _remote_config(self, worker: int) -> dict[str, Any]:
        configs: dict[str, Any] | Sequence[dict[str, Any]] = self._cfg.remote_configs
        return configs if isinstance(configs, dict) else configs[worker]


class RayLearnersLauncher(RayLauncher):
    """Starts an actor for each learner but the first one, whose process this is. Each writes to its log in the run
    folder, which must be on a file system that all nodes share."""

    _role = "learner"

    def __init__(self, cfg: RayLauncherConfig, start_timeout_s: float, log_dir: Path):
        super().__init__(
            cfg, len(cfg.remote_configs), start_timeout_s, lambda index: log_dir / f"learner-{index + 1}.log"
        )

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> RemoteHandle:
        assert self._log is not None
        # The actor looks for this line.
        line = f"{self.name(worker)} starts as a Ray actor ({secrets.token_hex(4)})\n"
        with open(self._log(worker), "a") as file:
            file.write(line)
        ignore_warnings = sys.modules["collectx"].filter_warnings_subprocess
        setup = (self._cfg.num_threads, None, str(self._log(worker)), ignore_warnings, ())
        arguments = (setup, line, os.getcwd(), hydra_state.current(), entry)
        return super().start(worker, (run_learner, arguments))


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


def _kill(handle: RemoteHandle, signum: int) -> None:
    if ray.is_initialized():
        with contextlib.suppress(Exception):
            ray.kill(handle.actor)


def _finish(handle: RemoteHandle, work: Any) -> None:
    """Finishes a handle, with the cause in its text, when the worker's function has returned or raised."""
    error = work.exception()
    if error is not None:
        # The first line names the actor, the last one the cause; lines of fields stand between them.
        text = _COLOUR.sub("", str(error))
        lines = [line for line in text.splitlines() if line and not line.startswith(("\t", " "))]
        handle.text += f": {' '.join(lines[:1] + lines[1:][-1:])}"
        if "No module named 'collectx'" in text:
            handle.text += ". Install the same version of collectx in the Python of each node"
    handle.finish(0 if error is None else 1)
