"""Options of the groups `backend`, `launcher` and `devices`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.fields import Section, above, at_least, within


@dataclass(kw_only=True)
class BackendConfig(Section):
    kind: str
    interface: str | None
    port: int | None = within(1, 65535)


@dataclass(kw_only=True)
class RpcBackendConfig(BackendConfig):
    tensorpipe: dict[str, Any] = field(default_factory=dict)
    visible_devices: list[str] | None


@dataclass(kw_only=True)
class LauncherConfig(Section):
    kind: str
    num_threads: int = at_least(1)
    pin_cores: bool


@dataclass(kw_only=True)
class SlurmResources(Section):
    """Resources that a job requests from SLURM. None: the default of the cluster."""

    partition: str | None
    account: str | None
    qos: str | None
    time: str | None
    mem: str | None
    cpus_per_task: int | None = at_least(1)
    gpus: int | None = at_least(0)
    constraint: str | None
    exclusive: bool
    container: str | None
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class JobLauncherConfig(SlurmResources, LauncherConfig):
    python: str | None
    srun: dict[str, Any] = field(default_factory=dict)
    requeue: bool | None
    max_requeues: int = at_least(0)


@dataclass(kw_only=True)
class SubmititLauncherConfig(JobLauncherConfig):
    queue_timeout_s: float = above(0)


@dataclass(kw_only=True)
class SlurmLauncherConfig(JobLauncherConfig):
    nodes: int | None = at_least(1)
    signal_s: int = at_least(1)
    max_parallel: int | None = at_least(1)
    wait: bool


@dataclass(kw_only=True)
class PartResources(Section):
    """Overrides the job's resources for one component. None: not overridden."""

    partition: str | None
    mem: str | None
    cpus_per_task: int | None = at_least(1)
    gpus: int | None = at_least(0)
    constraint: str | None
    exclusive: bool | None
    container: str | None
    sbatch: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class SubmititDelayedLauncherConfig(SlurmLauncherConfig):
    trainer: PartResources
    worker: PartResources


@dataclass(kw_only=True)
class RayLauncherConfig(LauncherConfig):
    ray_init_config: dict[str, Any] = field(default_factory=dict)
    # A mapping, or a list with one for each worker.
    remote_configs: Any = field(default_factory=dict)
    queue_timeout_s: float = above(0)
    autoscaling: bool


@dataclass(kw_only=True)
class DevicesConfig(Section):
    device: str | None
    storing_device: str | None
    policy_device: str | None
    env_device: str | None
