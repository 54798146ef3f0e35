"""Keywords of collectors whose workers are on other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collectx.config.derived import GROUP_BACKENDS
from collectx.config.schema.launcher import BackendConfig, RayLauncherConfig, RpcBackendConfig
from collectx.library.keywords.coerce import device_problem, for_each
from collectx.library.keywords.nested import Nested
from collectx.library.keywords.options import limited, option
from collectx.transport.network.availability import actor_problems, why_not


@dataclass(frozen=True, kw_only=True)
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
        return BackendConfig(kind=self.backend, interface=None, port=self.tcp_port)


@dataclass(frozen=True, kw_only=True)
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

    def remote_problems(self) -> list[str]:
        problems = super().remote_problems()
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
        return RpcBackendConfig(
            kind="rpc",
            interface=None,
            port=self.tcp_port,
            tensorpipe=dict(self.tensorpipe_options or {}),
            visible_devices=self.visible,
        )


@dataclass(frozen=True, kw_only=True)
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

    def remote_problems(self) -> list[str]:
        problems, num_workers = super().remote_problems(), self.worker_count
        if (reason := why_not("ray")) is not None:
            problems.append(reason)
        each = for_each(self.remote_configs, num_workers)
        if len(each) != num_workers:
            count = f"{len(each)} entries for {num_workers} workers"
            problems.append(f"remote_configs has {count}: one for each, or one dict.")
        if not all(one is None or isinstance(one, Mapping) for one in each):
            problems.append(f"remote_configs={self.remote_configs!r}: must be a dict, or one for each worker.")
        else:
            problems += actor_problems("remote_configs", each)
        if self.num_collectors is not None and self.num_collectors != num_workers:
            problems.append(f"num_collectors={self.num_collectors}, but num_workers={num_workers}: give one of them.")
        return problems

    def launcher_config(self, num_threads: int) -> RayLauncherConfig:
        """The options of the group `launcher`."""
        return RayLauncherConfig(
            kind="ray",
            num_threads=num_threads,
            pin_cores=False,
            ray_init_config=dict(self.ray_init_config or {}),
            remote_configs=[dict(one or {"num_cpus": 1}) for one in for_each(self.remote_configs, self.worker_count)],
            queue_timeout_s=self.queue_timeout_s,
            autoscaling=self.autoscaling,
        )


def _gpu_name(device: Any) -> Any:
    """A device by its index: torch takes one only on a machine with a GPU."""
    return f"cuda:{device}" if isinstance(device, int) else device
