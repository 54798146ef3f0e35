"""Options of the groups `backend`, `launcher` and `devices`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from collectx.config.schema.fields import above, at_least, one_of


@dataclass
class BackendConfig:
    kind: str = MISSING
    interface: str | None = MISSING
    port: int | None = MISSING


@dataclass
class RpcBackendConfig(BackendConfig):
    tensorpipe: dict[str, Any] = field(default_factory=dict)
    visible_devices: list[str] | None = MISSING


@dataclass
class LauncherConfig:
    kind: str = MISSING
    hydra_mode: str | None = one_of("RUN", "MULTIRUN")
    num_threads: int = at_least(1)
    pin_cores: bool = MISSING


@dataclass
class SlurmResources:
    """What a job asks SLURM for. None: nothing is asked for, and the cluster's own default holds."""

    partition: str | None = MISSING
    account: str | None = MISSING
    qos: str | None = MISSING
    time: str | None = MISSING
    mem: str | None = MISSING
    cpus_per_task: int | None = at_least(1)
    gpus: int | None = at_least(0)
    constraint: str | None = MISSING
    exclusive: bool = MISSING
    container: str | None = MISSING
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)


@dataclass
class SubmititLauncherConfig(SlurmResources, LauncherConfig):
    python: str | None = MISSING
    srun: dict[str, Any] = field(default_factory=dict)
    queue_timeout_s: float = above(0)


@dataclass
class SlurmLauncherConfig(SlurmResources, LauncherConfig):
    python: str | None = MISSING
    nodes: int | None = at_least(1)
    srun: dict[str, Any] = field(default_factory=dict)
    requeue: bool = MISSING
    max_parallel: int | None = at_least(1)
    wait: bool = MISSING


@dataclass
class PartResources:
    """What one part of a job asks for in the place of what the whole job does. None: the same."""

    partition: str | None = MISSING
    mem: str | None = MISSING
    cpus_per_task: int | None = at_least(1)
    gpus: int | None = at_least(0)
    constraint: str | None = MISSING
    exclusive: bool | None = MISSING
    container: str | None = MISSING
    sbatch: dict[str, Any] = field(default_factory=dict)


@dataclass
class SubmititDelayedLauncherConfig(SlurmLauncherConfig):
    trainer: PartResources = MISSING
    worker: PartResources = MISSING


@dataclass
class RayLauncherConfig(LauncherConfig):
    ray_init_config: dict[str, Any] = field(default_factory=dict)
    # A mapping, or a list with one for each worker.
    remote_configs: Any = field(default_factory=dict)
    queue_timeout_s: float = above(0)
    autoscaling: bool = MISSING


@dataclass
class DevicesConfig:
    device: str | None = MISSING
    storing_device: str | None = MISSING
    policy_device: str | None = MISSING
    env_device: str | None = MISSING
