"""Workers that are Ray actors: with `launcher=ray`.

`placing` is called in the trainer's process, `serve_actor` in the worker's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from collectx.config import RayLauncherConfig
from collectx.launcher.base import Launcher
from collectx.transport.network.handshake import Endpoint
from collectx.user_objects import UserObjects

if TYPE_CHECKING:
    from collectx.transport.network.ray import ActorHandle


def placing(
    launcher: RayLauncherConfig, num_workers: int, start_timeout_s: float, given: Callable[[int, int], UserObjects]
) -> Launcher:
    """A place whose workers are actors, wherever Ray finds the resources that they ask for. Connects this process to
    Ray.

    Args:
        given: `given(worker, life)` is what a worker cannot be told over a connection.

    Raises:
        LauncherError: there is no such cluster, or it has no room for the workers.
    """
    from collectx.transport.network import ray, ray_cluster

    ray_cluster.connect(launcher.ray_init_config)
    if not launcher.autoscaling:
        configs = [remote_config(launcher.remote_configs, worker) for worker in range(num_workers)]
        ray_cluster.check_resources("launcher.remote_configs", configs)
    endpoints: list[Endpoint] = []
    handles: dict[int, ActorHandle] = {}

    def start(worker: int, life: int) -> ActorHandle:
        words = {
            "num_threads": launcher.num_threads,
            "endpoint": endpoints[0],
            "worker": worker,
            "start_timeout_s": start_timeout_s,
            "given": given(worker, life),
        }
        asked = remote_config(launcher.remote_configs, worker)
        handles[worker] = ray.start(asked, f"{__name__}:serve_actor", words)
        return handles[worker]

    def describe(worker: int) -> str:
        if worker not in handles:
            return f"worker {worker}"
        if handles[worker].is_placed:
            return f"worker {worker} ({handles[worker]})"
        asked = ray_cluster.describe_request(remote_config(launcher.remote_configs, worker))
        return f"worker {worker} (Ray has not started it: it asks for {asked}. {ray_cluster.describe_resources()})"

    def join_timeout(worker: int) -> tuple[str, float]:
        if worker in handles and not handles[worker].is_placed:
            return "launcher.queue_timeout_s", launcher.queue_timeout_s
        return "collector.start_timeout_s", start_timeout_s

    return Launcher(endpoints.append, start, describe, join_timeout)


def are_here(launcher: RayLauncherConfig) -> bool:
    """Whether all workers will be on this machine. Connects this process to Ray.

    Raises:
        LauncherError: there is no such cluster.
    """
    from collectx.transport.network import ray_cluster

    ray_cluster.connect(launcher.ray_init_config)
    return ray_cluster.is_single_host()


def remote_config(configs: dict[str, Any] | Sequence[dict[str, Any]], worker: int) -> dict[str, Any]:
    """What the actor of one worker asks for: the same for all, or one for each."""
    return configs if isinstance(configs, dict) else configs[worker]


def serve_actor(num_threads: int, endpoint: Endpoint, worker: int, start_timeout_s: float, given: UserObjects) -> None:
    """Works until the trainer says stop."""
    import torch

    from collectx.collector.worker_entry import run_remote_worker

    torch.set_num_threads(num_threads)
    run_remote_worker(endpoint, worker, start_timeout_s, given)


def leave_ray() -> None:
    """Ends this process's connection to Ray, and a cluster that it has begun."""
    from collectx.transport.network import ray_cluster

    ray_cluster.disconnect()
