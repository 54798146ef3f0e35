"""Workers that are Ray actors: with `launcher=ray`.

`placing` is called in the trainer's process, `serve_actor` in the worker's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from collectx.config import RayLauncherConfig
from collectx.given import Given
from collectx.launcher.place import Place
from collectx.transport.rendezvous import Meeting

if TYPE_CHECKING:
    from collectx.transport.pair_ray import ActorHandle


def placing(launcher: RayLauncherConfig, start_timeout_s: float, given: Callable[[int, int], Given]) -> Place:
    """A place whose workers are actors, wherever Ray finds the resources that they ask for. Connects this process to
    Ray.

    Args:
        given: `given(worker, life)` is what a worker cannot be told over a connection.
    """
    from collectx.transport import pair_ray

    pair_ray.begin(launcher.ray_init_config)
    meetings: list[Meeting] = []
    handles: dict[int, ActorHandle] = {}

    def start(worker: int, life: int) -> ActorHandle:
        words = {
            "num_threads": launcher.num_threads,
            "meeting": meetings[0],
            "worker": worker,
            "start_timeout_s": start_timeout_s,
            "given": given(worker, life),
        }
        asked = remote_config(launcher.remote_configs, worker)
        handles[worker] = pair_ray.start(asked, f"{__name__}:serve_actor", words)
        return handles[worker]

    def describe(worker: int) -> str:
        return f"worker {worker} ({handles[worker]})" if worker in handles else f"worker {worker}"

    return Place(announce=meetings.append, start=start, describe=describe)


def are_here(launcher: RayLauncherConfig) -> bool:
    """Whether all workers will be on this machine. Connects this process to Ray, where it is to be another's cluster.

    Raises:
        LauncherError: there is no such cluster.
    """
    if launcher.ray_init_config.get("address") in (None, "local"):
        return True
    from collectx.transport import pair_ray

    pair_ray.begin(launcher.ray_init_config)
    return pair_ray.is_alone()


def remote_config(configs: dict[str, Any] | Sequence[dict[str, Any]], worker: int) -> dict[str, Any]:
    """What the actor of one worker asks for: the same for all, or one for each."""
    return configs if isinstance(configs, dict) else configs[worker]


def serve_actor(num_threads: int, meeting: Meeting, worker: int, start_timeout_s: float, given: Given) -> None:
    """Works until the trainer says stop."""
    import torch

    from collectx.collector.remote import serve_remote

    torch.set_num_threads(num_threads)
    serve_remote(meeting, worker, start_timeout_s, given)
