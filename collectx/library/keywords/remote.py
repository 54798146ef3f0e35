"""Those of collectors whose workers are on other hosts, or as good as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collectx.config import (
    GROUP_BACKENDS,
    BackendConfig,
    RayLauncherConfig,
    RpcBackendConfig,
)
from collectx.library.keywords.alike import ALIKE
from collectx.library.keywords.coerce import (
    exploration_of,
    exploration_problems,
    for_each,
    why_no_device,
)
from collectx.library.keywords.custom import MEANINGS, custom_class, meaning
from collectx.transport.network.availability import actor_problems, tensorpipe_problems, why_not


@dataclass(frozen=True)
class Nested:
    """What a worker is.

    Args:
        num_workers_per_collector: processes of each worker, which then is a collector itself.
        collector_class: which: "single" (one process), "sync" (a batch has a part of each) or "async" (a batch comes
            from one), or the class of that meaning, of this package or of TorchRL; or a class of your own, see README,
            "A collector of your own". None: "single" for one process, otherwise "sync".
        collector_kwargs: what a worker's collector is told otherwise than all; one dict for all, or one for each. May
            have `create_env_kwargs`, `device`, `policy_device` and `exploration_type`, and, the same for all, those of
            this constructor's that say what a worker does, such as `max_frames_per_traj` and `storing_device`; for a
            class of your own, whatever it takes.
    """

    num_workers_per_collector: int = 1
    collector_class: Any = None
    collector_kwargs: Any = None

    @property
    def inner(self) -> str:
        """ "single", "sync" or "async"."""
        given = self.collector_class
        own = custom_class(given)
        if given is None or (own is not None and meaning(own) is None):
            return "sync" if self.num_workers_per_collector > 1 else "single"
        if isinstance(given, str):
            return given
        return meaning(given) or str(given)

    def problems(self, num_workers: int) -> list[str]:
        """What is wrong, for so many workers."""
        found = []
        count, inner = self.num_workers_per_collector, self.inner
        if count < 1:
            found.append(f"num_workers_per_collector={count}: must be at least 1.")
        if inner not in ("single", "sync", "async"):
            found.append(
                f"collector_class={self.collector_class!r}: must be 'single', 'sync', 'async', one of "
                f"{', '.join(MEANINGS)}, or a class of your own."
            )
        elif inner == "single" and count > 1:
            found.append(
                f"num_workers_per_collector={count}: collector_class='single' has one process: use 'sync' or 'async'."
            )
        each = for_each(self.collector_kwargs, num_workers)
        if len(each) != num_workers:
            found.append(
                f"collector_kwargs has {len(each)} entries for {num_workers} workers: one for each, or one dict."
            )
        for own in each:
            found += own_problems(own or {}, custom_class(self.collector_class) is None)
        return list(dict.fromkeys(found))

    def backend_config(self) -> BackendConfig:
        """How bytes travel."""
        return BackendConfig(kind="auto", interface=None, port=None)


@dataclass(frozen=True)
class Remote(Nested):
    """Workers over torch.distributed.

    Args:
        backend: "gloo", "nccl", "mpi" or "ucc".
        launcher: "submitit": SLURM jobs that this process submits, and that join as they start; "mp": processes of this
            machine; "submitit_delayed": jobs that were submitted beforehand, see
            `collectx.submitit_delayed_launcher`.
        slurm_kwargs: what the jobs ask for, by submitit's names (`timeout_min`, `slurm_partition`, `mem_gb`,
            `cpus_per_task`, `slurm_setup`, ...); any other option of sbatch in `slurm_additional_parameters`.
        tcp_port: where the trainer listens; None: the system chooses.
        folder: where jobs find the trainer and write their logs, on a file system that all nodes share; None: a new one
            below `outputs/`.
    """

    backend: str = "gloo"
    launcher: str = "submitit"
    slurm_kwargs: dict[str, Any] | None = None
    tcp_port: int | None = None
    folder: str | Path | None = None

    def problems(self, num_workers: int) -> list[str]:
        """See `Nested`."""
        found = []
        if self.launcher not in ("mp", "submitit", "submitit_delayed"):
            found.append(
                f"launcher={self.launcher!r}: use 'mp', 'submitit' or 'submitit_delayed'; "
                "`collectx run launcher=...` knows more."
            )
        if self.backend not in GROUP_BACKENDS:
            found.append(f"backend={self.backend!r}: must be 'gloo', 'nccl', 'mpi' or 'ucc'.")
        return found + super().problems(num_workers)

    def backend_config(self) -> BackendConfig:
        """See `Nested`."""
        return BackendConfig(kind=self.backend, interface=None, port=self.tcp_port)


@dataclass(frozen=True)
class RpcRemote(Remote):
    """Workers over torch RPC; `backend` is not looked at.

    Args:
        visible_devices: for each worker the only GPU that its process sees, counted among those of its host, where its
            policy may act by that name or as "cuda"; "cpu": it sees none. Bytes lie on the CPU on their way. None: all
            see all.
        tensorpipe_options: `num_worker_threads`, `rpc_timeout` (seconds), `_transports` and `_channels` of
            `torch.distributed.rpc.TensorPipeRpcBackendOptions`.
    """

    visible_devices: Any = None
    tensorpipe_options: Mapping[str, Any] | None = None

    def problems(self, num_workers: int) -> list[str]:
        """See `Remote`."""
        found = super().problems(num_workers) + tensorpipe_problems("tensorpipe_options", self.tensorpipe_options or {})
        for device in self.visible_devices or ():
            if why := why_no_device(_gpu_named(device), is_here=self.launcher == "mp"):
                return [*found, f"visible_devices={self.visible_devices!r}: {why}"]
        return found

    @property
    def visible(self) -> list[str] | None:
        """`visible_devices` by their names."""
        if self.visible_devices is None:
            return None
        devices = [torch.device(_gpu_named(device)) for device in self.visible_devices]
        return [device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}" for device in devices]

    def backend_config(self) -> BackendConfig:
        """See `Remote`."""
        return RpcBackendConfig(
            kind="rpc",
            interface=None,
            port=self.tcp_port,
            tensorpipe=dict(self.tensorpipe_options or {}),
            visible_devices=self.visible,
        )


@dataclass(frozen=True)
class RayRemote(Nested):
    """Workers that are Ray actors.

    Args:
        ray_init_config: arguments of `ray.init`, such as `{"address": "auto"}` for the cluster that runs here already;
            not looked at where this process is connected to Ray. Without an address, here or in RAY_ADDRESS: one of
            this machine alone, until this process ends.
        remote_configs: arguments of `ray.remote` for the workers' actors, such as `num_cpus` and `num_gpus`; one dict
            for all, or one for each. None: one core.
        num_collectors: TorchRL's name for `num_workers`.
        use_env_creator: is not looked at.
        queue_timeout_s: when Ray must have started a worker's process, with the imports of its first moments, in
            seconds: it waits where others use what it asks for, or, with `autoscaling`, where the node that has it is
            still to come.
        autoscaling: the cluster adds nodes by itself. Otherwise what it does not have is told before anything starts.
    """

    ray_init_config: dict[str, Any] | None = None
    remote_configs: Any = None
    num_collectors: int | None = None
    use_env_creator: bool = False
    queue_timeout_s: float = 180.0
    autoscaling: bool = False

    def problems(self, num_workers: int) -> list[str]:
        """See `Nested`."""
        found = super().problems(num_workers)
        if (why := why_not("ray")) is not None:
            found.append(why)
        each = for_each(self.remote_configs, num_workers)
        if len(each) != num_workers:
            found.append(
                f"remote_configs has {len(each)} entries for {num_workers} workers: one for each, or one dict."
            )
        if not all(own is None or isinstance(own, Mapping) for own in each):
            found.append(f"remote_configs={self.remote_configs!r}: must be a dict, or one for each worker.")
        else:
            found += actor_problems("remote_configs", each)
        if self.queue_timeout_s <= 0:
            found.append(f"queue_timeout_s={self.queue_timeout_s}: must be above 0.")
        if self.num_collectors is not None and self.num_collectors != num_workers:
            found.append(f"num_collectors={self.num_collectors}, but num_workers={num_workers}: give one of them.")
        return found

    def launcher_config(self, num_threads: int, num_workers: int) -> RayLauncherConfig:
        """Where workers come up."""
        each = [dict(own or {"num_cpus": 1}) for own in for_each(self.remote_configs, num_workers)]
        cluster = dict(self.ray_init_config or {})
        return RayLauncherConfig(
            kind="ray",
            hydra_mode=None,
            num_threads=num_threads,
            pin_cores=False,
            ray_init_config=cluster,
            remote_configs=each,
            queue_timeout_s=self.queue_timeout_s,
            autoscaling=self.autoscaling,
        )


_OWN = ("create_env_kwargs", "device", "policy_device", "exploration_type")


def _gpu_named(device: Any) -> Any:
    """torch itself takes a number for a device only where there is a GPU."""
    return f"cuda:{device}" if isinstance(device, int) else device


def own_problems(own: dict[str, Any], is_ours: bool) -> list[str]:
    """What is wrong with the `collector_kwargs` of a worker; `is_ours`: they are not for a class of the user's own."""
    found = []
    unknown = sorted(own.keys() - set(_OWN))
    if unknown and is_ours:
        found.append(f"collector_kwargs has {', '.join(unknown)}: may have {', '.join(_OWN + ALIKE)}.")
    for name in ("device", "policy_device"):
        if why := why_no_device(own.get(name)):
            found.append(f"collector_kwargs: {name}={own[name]!r}: {why}")
    if "exploration_type" in own and is_ours:
        found += exploration_problems("collector_kwargs: ", exploration_of(own["exploration_type"]))
    return found
