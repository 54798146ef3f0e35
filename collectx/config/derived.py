"""Schedule, backend, and numbers of workers, processes and tasks that follow from a configuration."""

from __future__ import annotations

from collectx.config.registry import KINDS
from collectx.config.schema.collector import CollectorConfig, EitherCollectorConfig, ServerInferenceConfig
from collectx.config.schema.env import GymVectorEnvConfig
from collectx.config.schema.launcher import DevicesConfig, SlurmLauncherConfig
from collectx.config.schema.run import RunConfig

# Backends for workers on other hosts.
NETWORK_BACKENDS = tuple(name for name, kind in KINDS["backend"].items() if kind.implementation)

# Backends whose workers are ranks of a group: torch.distributed and MPI.
GROUP_BACKENDS = tuple(name for name in NETWORK_BACKENDS if name != "rpc")

# Launchers that submit trainer and workers as one job: the trainer runs on another machine than the command.
JOB_LAUNCHERS = tuple(name for name, kind in KINDS["launcher"].items() if issubclass(kind.schema, SlurmLauncherConfig))

# The schedule of each kind of collector; that of `rpc` and `ray` is their option `sync`.
SCHEDULES = {
    "single": "single",
    "multi_sync": "sync",
    "multi_async": "async",
    "distributed_sync": "sync",
    "distributed": "async",
}

# Collectors over a network, also for workers of this machine.
REMOTE = ("distributed", "distributed_sync", "rpc", "ray")


def schedule_of(collector: CollectorConfig) -> str:
    """The kind of batch: "single" or "async", a part of one worker, the first that is complete; "sync", one part of
    every worker."""
    if isinstance(collector, EitherCollectorConfig):
        return "sync" if collector.sync else "async"
    return SCHEDULES[collector.kind]


def acts_in_fixed_order(cfg: RunConfig) -> bool:
    """Whether the inference server acts for all envs in a fixed order."""
    order = cfg.inference.order if isinstance(cfg.inference, ServerInferenceConfig) else "fixed"
    return order == "fixed" or (order == "auto" and schedule_of(cfg.collector) != "async")


def surplus_note(total: int, frames: int, prefix: str = "") -> str | None:
    """The warning if `total_frames` is not a multiple of `frames_per_batch`; None if it is.

    Args:
        prefix: prefix of both keys in the message.
    """
    if total <= 0 or total % frames == 0:
        return None
    batches = -(-total // frames)
    collected = f"{batches} whole batches, {batches * frames} frames, are"
    if batches == 1:
        collected = f"1 whole batch ({frames} frames) is"
    return (
        f"{prefix}total_frames={total} is not a multiple of {prefix}frames_per_batch={frames} ({total} / {frames} = "
        f"{total / frames:.2f}): {collected} collected."
    )


def is_elastic(collector: CollectorConfig) -> bool:
    """Whether a run begins as soon as `min_workers` of its workers are ready, and the others join later."""
    least, is_free = collector.min_workers, collector.order_of is None
    return collector.on_worker_failure == "drop" and is_free and least is not None and least < collector.num_workers


def num_workers_of(collector: CollectorConfig) -> int:
    """Number of workers."""
    return 1 if schedule_of(collector) == "single" else collector.num_workers


def frames_per_part(collector: CollectorConfig) -> int:
    """Frames of one worker in a batch."""
    return collector.frames_per_batch // (collector.num_workers if schedule_of(collector) == "sync" else 1)


def rows_per_env(collector: CollectorConfig) -> int:
    """Rows per env in a worker's batch: the number of its processes if `inner=sync`, otherwise 1."""
    return collector.num_workers_per_collector if collector.inner == "sync" else 1


def num_tasks_of(cfg: RunConfig) -> int:
    """Number of processes of a job with trainer and workers; `collector=single` has the trainer alone."""
    return 1 if schedule_of(cfg.collector) == "single" else 1 + cfg.collector.num_workers


def processes_of(cfg: RunConfig) -> dict[str, int]:
    """The number of processes of each role, on all hosts."""
    options, env = cfg.collector, cfg.env
    workers = 0 if backend_of(cfg) == "inline" else num_workers_of(options)
    nested = options.num_workers_per_collector if options.num_workers_per_collector > 1 else 0
    is_async_env = isinstance(env, GymVectorEnvConfig) and env.vectorization_mode == "async"
    return {
        "trainer": 1,
        "workers": workers,
        "processes_in_workers": workers * nested,
        "inference_server": int(isinstance(cfg.inference, ServerInferenceConfig)),
        "env_processes": (workers * (nested or 1) or num_workers_of(options)) * env.num_envs * is_async_env,
        # Python's fork server and its resource tracker.
        "fork_server_and_tracker": 2 * (cfg.launcher.kind == "local" and workers > 0),
    }


def backend_of(cfg: RunConfig) -> str:
    """The backend; for `backend=auto` inline within one process, shared_memory on one machine, otherwise the one that
    collector or launcher need, nccl between GPUs, or gloo."""
    if cfg.backend.kind != "auto":
        return cfg.backend.kind
    if schedule_of(cfg.collector) == "single" or cfg.launcher.kind == "inline":
        return "inline"
    if cfg.collector.kind == "rpc":
        return "rpc"
    if cfg.launcher.kind == "ray" and not cfg.collector.kind.startswith("distributed"):
        return "gloo"  # Ray may place a worker on the trainer's GPU, where NCCL cannot work
    if cfg.launcher.kind == "local" and cfg.collector.kind not in REMOTE:
        return "shared_memory"
    return "gloo" if why_no_nccl(cfg) else "nccl"


def resolve_devices(devices: DevicesConfig) -> DevicesConfig:
    """TorchRL's rule: `device` is the default of the other three; without it, batches stay on the device of both the
    policy and the envs."""
    device = devices.device
    policy, env = devices.policy_device or device, devices.env_device or device
    return DevicesConfig(
        device=device,
        storing_device=devices.storing_device or device or (policy if policy == env else None),
        policy_device=policy,
        env_device=env,
    )


def why_no_nccl(cfg: RunConfig) -> str | None:
    """Returns why batches cannot be sent from GPU to GPU; None if they can."""
    devices = cfg.devices
    ends = {name: getattr(devices, name) or devices.device or "cpu" for name in ("policy_device", "storing_device")}
    for name, device in ends.items():
        if not device.startswith("cuda"):
            return f"`devices.{name}={device}`: it sends from the GPU of the policy to the GPU where batches are stored"
    # On another host the same name is another GPU.
    policy, storing = (device if ":" in device else f"{device}:0" for device in ends.values())
    if cfg.launcher.kind == "local" and policy == storing:
        return (
            f"`devices.policy_device` and `devices.storing_device` are both {storing} with `launcher=local`: NCCL "
            "needs one GPU for each end"
        )
    return None
