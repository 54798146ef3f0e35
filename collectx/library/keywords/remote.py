"""Keywords of collectors whose workers are on other hosts, or are collectors themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collectx.config.derived import GROUP_BACKENDS
from collectx.config.schema.launcher import BackendConfig, RayLauncherConfig, RpcBackendConfig
from collectx.library.keywords.coerce import (
    device_problem,
    exploration_name,
    exploration_problems,
    for_each,
)
from collectx.library.keywords.collector_class import KNOWN_CLASSES, known_base, user_class
from collectx.library.keywords.options import limited, option
from collectx.library.keywords.shared import SHARED
from collectx.transport.network.availability import actor_problems, why_not


@dataclass(frozen=True)
class Nested:
    """The keywords about the collector that a worker runs.

    Args:
        num_workers_per_collector: processes of each worker; more than one make it a collector itself.
        collector_class: its kind: "single" (one process), "sync" (a batch has a part of each process) or "async" (a
            batch comes from one process), or the class of that kind, of this package or TorchRL; or a user's class, see
            docs/LIBRARY.md, "User-defined collector classes". None: "single" for one process, otherwise "sync".
        collector_kwargs: keyword arguments of a worker's collector; one dict for all, or one per worker. May have
            `create_env_kwargs`, `device`, `policy_device` and `exploration_type`, and, the same for all workers, the
            constructor's keywords about trajectories and devices, such as `max_frames_per_traj`; for a user's class,
            any that it takes.
    """

    num_workers_per_collector: int = option("collector.num_workers_per_collector", 1)
    collector_class: Any = None
    collector_kwargs: Any = None

    @property
    def inner(self) -> str:
        """ "single", "sync" or "async"."""
        collector_class = self.collector_class
        cls = user_class(collector_class)
        if collector_class is None or (cls is not None and known_base(cls) is None):
            return "sync" if self.num_workers_per_collector > 1 else "single"
        if isinstance(collector_class, str):
            return collector_class
        return known_base(collector_class) or str(collector_class)

    def problems(self, num_workers: int) -> list[str]:
        """What is wrong, for so many workers."""
        problems = []
        if self.inner not in ("single", "sync", "async"):
            problems.append(
                f"collector_class={self.collector_class!r}: must be 'single', 'sync', 'async', one of "
                f"{', '.join(KNOWN_CLASSES)}, or a user's class."
            )
        each = for_each(self.collector_kwargs, num_workers)
        if len(each) != num_workers:
            problems.append(
                f"collector_kwargs has {len(each)} entries for {num_workers} workers: one for each, or one dict."
            )
        for kwargs in each:
            problems += kwargs_problems(kwargs or {}, user_class(self.collector_class) is None)
        return list(dict.fromkeys(problems))

    def backend_config(self) -> BackendConfig:
        """The options of the group `backend`."""
        return BackendConfig(kind="auto", interface=None, port=None)


@dataclass(frozen=True)
class Remote(Nested):
    """The keywords about workers over torch.distributed.

    Args:
        backend: "gloo", "nccl", "mpi" or "ucc".
        launcher: "submitit": SLURM jobs that this process submits, and that join as they start; "mp": processes of this
            machine; "submitit_delayed": jobs that `collectx.submitit_delayed_launcher` has submitted. The command line,
            `collectx run launcher=...`, has others.
        slurm_kwargs: resources of the jobs, by submitit's names (`timeout_min`, `slurm_partition`, `mem_gb`,
            `cpus_per_task`, `slurm_setup`, ...); any other option of sbatch in `slurm_additional_parameters`.
        tcp_port: port of the trainer; None: the system chooses.
        folder: in which jobs find the trainer and write their logs, on a file system that all nodes share; None: a new
            folder below `outputs/`.
    """

    backend: str = limited("gloo", choices=GROUP_BACKENDS)
    launcher: str = limited("submitit", choices=("mp", "submitit", "submitit_delayed"))
    slurm_kwargs: dict[str, Any] | None = None
    tcp_port: int | None = None
    folder: str | Path | None = None

    def backend_config(self) -> BackendConfig:
        """See `Nested`."""
        return BackendConfig(kind=self.backend, interface=None, port=self.tcp_port)


@dataclass(frozen=True)
class RpcRemote(Remote):
    """The keywords about workers over torch RPC; `backend` is ignored.

    Args:
        visible_devices: for each worker the only GPU that its process sees, by its index on the host; its policy uses
            that name or "cuda". "cpu": no GPU. Bytes are sent from the CPU. None: every worker sees all GPUs.
        tensorpipe_options: `num_worker_threads`, `rpc_timeout` (seconds), `_transports` and `_channels` of
            `torch.distributed.rpc.TensorPipeRpcBackendOptions`.
    """

    visible_devices: Any = None
    tensorpipe_options: Mapping[str, Any] | None = None

    def problems(self, num_workers: int) -> list[str]:
        """See `Remote`."""
        problems = super().problems(num_workers)
        for device in self.visible_devices or ():
            if reason := device_problem(_gpu_name(device), is_here=self.launcher == "mp"):
                return [*problems, f"visible_devices={self.visible_devices!r}: {reason}"]
        return problems

    @property
    def visible(self) -> list[str] | None:
        """`visible_devices` by their names."""
        if self.visible_devices is None:
            return None
        devices = [torch.device(_gpu_name(device)) for device in self.visible_devices]
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
    """The keywords about workers that are Ray actors.

    Args:
        ray_init_config: arguments of `ray.init`, such as `{"address": "auto"}` for the cluster that runs on this host;
            ignored if this process is connected to Ray. Without an address, here or in RAY_ADDRESS: a cluster of this
            machine alone, until this process ends.
        remote_configs: arguments of `ray.remote` for the workers' actors, such as `num_cpus` and `num_gpus`; one dict
            for all, or one per worker. None: one core.
        num_collectors: TorchRL's name for `num_workers`.
        use_env_creator: ignored (accepted for TorchRL compatibility).
        queue_timeout_s: seconds within which Ray must start a worker's process, its first imports included. Ray waits
            for resources that others use, or, with `autoscaling`, for a new node.
        autoscaling: whether the cluster adds nodes by itself. Otherwise missing resources are an error before anything
            starts.
    """

    ray_init_config: dict[str, Any] | None = None
    remote_configs: Any = None
    num_collectors: int | None = None
    use_env_creator: bool = False
    queue_timeout_s: float = option("launcher.queue_timeout_s", 180.0)
    autoscaling: bool = False

    def problems(self, num_workers: int) -> list[str]:
        """See `Nested`."""
        problems = super().problems(num_workers)
        if (reason := why_not("ray")) is not None:
            problems.append(reason)
        each = for_each(self.remote_configs, num_workers)
        if len(each) != num_workers:
            problems.append(
                f"remote_configs has {len(each)} entries for {num_workers} workers: one for each, or one dict."
            )
        if not all(one is None or isinstance(one, Mapping) for one in each):
            problems.append(f"remote_configs={self.remote_configs!r}: must be a dict, or one for each worker.")
        else:
            problems += actor_problems("remote_configs", each)
        if self.num_collectors is not None and self.num_collectors != num_workers:
            problems.append(f"num_collectors={self.num_collectors}, but num_workers={num_workers}: give one of them.")
        return problems

    def launcher_config(self, num_threads: int, num_workers: int) -> RayLauncherConfig:
        """The options of the group `launcher`."""
        each = [dict(one or {"num_cpus": 1}) for one in for_each(self.remote_configs, num_workers)]
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


PER_WORKER = ("create_env_kwargs", "device", "policy_device", "exploration_type")


def _gpu_name(device: Any) -> Any:
    """A device by its index: torch takes one only on a machine with a GPU."""
    return f"cuda:{device}" if isinstance(device, int) else device


def kwargs_problems(kwargs: dict[str, Any], is_ours: bool) -> list[str]:
    """What is wrong with the `collector_kwargs` of a worker; `is_ours`: they are not for a user's class."""
    problems = []
    unknown = sorted(kwargs.keys() - set(PER_WORKER))
    if unknown and is_ours:
        problems.append(f"collector_kwargs has {', '.join(unknown)}: may have {', '.join(PER_WORKER + SHARED)}.")
    for name in ("device", "policy_device"):
        if reason := device_problem(kwargs.get(name)):
            problems.append(f"collector_kwargs: {name}={kwargs[name]!r}: {reason}")
    if "exploration_type" in kwargs and is_ours:
        problems += exploration_problems("collector_kwargs: ", exploration_name(kwargs["exploration_type"]))
    return problems
