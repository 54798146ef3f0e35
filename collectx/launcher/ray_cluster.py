"""The Ray cluster that this process is connected to, and what room it has for workers. In the trainer's process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray

from collectx.errors import LauncherError

_CONNECT_S = 10.0
_DEFAULTS: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
_AUTH_MODE = "RAY_AUTH_MODE"
_TOKEN = f"One that is there may ask for a token: set {_AUTH_MODE}=token, with its first node's ~/.ray/auth_token here."
# What Ray itself says of a node.
_PREFIXES = ("node:", "object_store_memory")


def connect(options: Mapping[str, Any]) -> None:
    """Connects this process to a Ray cluster, by the arguments of `ray.init`, unless it is; it stays so until it ends.
    Without an address, from them or from the environment's RAY_ADDRESS, the cluster is one of this process alone.

    Raises:
        LauncherError: there is no cluster at the address, or Ray does not take the arguments.
    """
    if ray.is_initialized():
        return
    try:
        _reach(str(options.get("address")))
        with _signals_kept():
            ray.init(**(_DEFAULTS | dict(options) | _nobody_elses(options)))
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        # Ray does not tell a token that it lacks from a cluster that is not there.
        token = f" {_TOKEN}" if type(error) is ConnectionError and _AUTH_MODE not in os.environ else ""
        outside = os.environ.get("RAY_ADDRESS") if options.get("address") is None else None
        told = f"RAY_ADDRESS={outside}, " if outside else ""
        raise LauncherError(
            f"{told}launcher.ray_init_config={dict(options)}: {error}.{token} Start a cluster by `ray start --head`, "
            "or give no address: one of this machine alone is started."
        ) from error


def _nobody_elses(options: Mapping[str, Any]) -> dict[str, str]:
    """Ray itself would take whatever cluster runs here: also another run's own, which ends with that run."""
    is_told = options.get("address") is not None or os.environ.get("RAY_ADDRESS")
    return {} if is_told else {"address": "local"}


def disconnect() -> None:
    """Ends the connection, and a cluster that `connect` has started. Idempotent."""
    ray.shutdown()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and ends a process that has a way of its own to end in order."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _reach(address: str) -> None:
    """Ray itself tries for minutes. Raises OSError: nobody listens at `host:port`."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "//" not in address:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def is_single_host() -> bool:
    """Whether all nodes of the cluster that this process is connected to are on this machine."""
    mine = ray.util.get_node_ip_address()
    return all(node["NodeManagerAddress"] == mine for node in ray.nodes() if node["Alive"])


def check_resources(name: str, configs: Sequence[Mapping[str, Any]]) -> None:
    """Whether the cluster has room for actors with these arguments of `ray.remote`, which are called `name`, if nobody
    else uses it. What they say of where they want to be is not looked at.

    Raises:
        LauncherError: one of them asks for more than any node has, or all together for more than all nodes.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    asked = [_asked(config) for config in configs]
    for each in asked:
        if not any(_fits(each, node) for node in nodes):
            raise LauncherError(
                f"{name}: no node of the Ray cluster has {_shown(each)}. {_ADVICE} {describe_resources()}"
            )
    together, there = _sum(asked), _sum(nodes)
    if not _fits(together, there):
        raise LauncherError(
            f"{name}: {len(asked)} workers ask for {_shown(together)} together, more than the Ray cluster has. "
            f"{_ADVICE} {describe_resources()}"
        )


_ADVICE = "Ask for less, use fewer workers, or add nodes (launcher.autoscaling=true waits for nodes that are to come)."


def describe_resources() -> str:
    """What every node has, and what of it is free."""
    free = ray._private.state.available_resources_per_node()
    lines = Counter(
        f"{_shown(node['Resources'])}, of which are free {_shown(free.get(node['NodeID'], {}))}"
        for node in ray.nodes()
        if node["Alive"]
    )
    return "Nodes: " + "; ".join(f"{count} with {line}" for line, count in lines.items()) + "."


def describe_request(config: Mapping[str, Any]) -> str:
    """What an actor with these arguments of `ray.remote` asks for."""
    return _shown(_asked(config))


def _asked(config: Mapping[str, Any]) -> dict[str, float]:
    """By Ray's names of resources. An actor that says nothing of cores needs none."""
    asked = {str(name): float(count) for name, count in (config.get("resources") or {}).items()}
    for name, key in (("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "memory")):
        if config.get(key):
            asked[name] = float(config[key])
    return asked


def _sum(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for each in counts:
        for name, count in each.items():
            total[name] += count
    return total


def _fits(asked: Mapping[str, float], room: Mapping[str, float]) -> bool:
    # Ray counts in ten thousandths.
    return all(count <= room.get(name, 0.0) + 1e-4 for name, count in asked.items())


def _shown(resources: Mapping[str, float]) -> str:
    told = {name: count for name, count in sorted(resources.items()) if not name.startswith(_PREFIXES)}
    return ", ".join(_amount(name, count) for name, count in told.items()) or "nothing"


def _amount(name: str, count: float) -> str:
    return f"{count / 2**30:.1f} GiB of memory" if name == "memory" else f"{count:g} {name}"
