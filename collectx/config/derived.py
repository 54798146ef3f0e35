"""What follows from a configuration: schedule, backend, numbers of workers and tasks."""

from __future__ import annotations

from collectx.config.schema.collector import CollectorConfig, EitherCollectorConfig
from collectx.config.schema.run import RunConfig

# Those of torch.distributed.
GROUP_BACKENDS = ("gloo", "nccl", "mpi", "ucc")

# Backends by which workers may be on other hosts.
NETWORK_BACKENDS = (*GROUP_BACKENDS, "rpc", "ray")


# Launchers whose runs are jobs as a whole: the trainer too runs on another machine than the command, which only submits
# and follows them.
ELSEWHERE = ("slurm", "submitit_delayed")


# Collectors that deliver first what is ready first.
ASYNC = ("multi_async", "distributed")

# Collectors over a network, wherever their workers are.
REMOTE = ("distributed", "distributed_sync", "rpc", "ray")


def is_async(collector: CollectorConfig) -> bool:
    """Whether every batch comes whole from one worker."""
    if isinstance(collector, EitherCollectorConfig):
        return not collector.sync
    return collector.kind in ASYNC


def surplus_note(total: int, frames: int, prefix: str = "") -> str | None:
    """What the user should know where `total_frames` is not a multiple of `frames_per_batch`; None where it is.

    Args:
        prefix: of both keys, as the user writes them.
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


def is_stacked(collector: CollectorConfig) -> bool:
    """Whether a batch is one part of every worker, side by side."""
    return collector.kind != "single" and not is_async(collector)


def num_workers_of(cfg: RunConfig) -> int:
    """How many workers there are."""
    return 1 if cfg.collector.kind == "single" else cfg.collector.num_workers


def rows_per_env(collector: CollectorConfig) -> int:
    """How many envs of one worker's batch stand for one env of a process: those of all inner workers, where it joins a
    part of each."""
    return collector.num_workers_per_collector if collector.inner == "sync" else 1


def num_tasks_of(cfg: RunConfig) -> int:
    """How many processes a job has that is trainer and workers: `collector=single` has the trainer alone."""
    return 1 if cfg.collector.kind == "single" else 1 + cfg.collector.num_workers


def backend_of(cfg: RunConfig) -> str:
    """How bytes travel; what `backend=auto` stands for: inline within one process, shared_memory on one machine; for
    what is, or may be, on several nccl between GPUs, gloo otherwise, unless the collector says it."""
    if cfg.backend.kind != "auto":
        return cfg.backend.kind
    if cfg.collector.kind == "single" or cfg.launcher.kind == "inline":
        return "inline"
    if cfg.collector.kind == "rpc":
        return "rpc"
    if cfg.launcher.kind == "ray" and not cfg.collector.kind.startswith("distributed"):
        return "ray"
    if cfg.launcher.kind == "local" and cfg.collector.kind not in REMOTE:
        return "shared_memory"
    return "gloo" if why_no_nccl(cfg) else "nccl"


def why_no_nccl(cfg: RunConfig) -> str | None:
    """What in the configuration keeps bytes from travelling from GPU to GPU; None where nothing does."""
    devices = cfg.devices
    ends = {name: getattr(devices, name) or devices.device or "cpu" for name in ("policy_device", "storing_device")}
    for name, device in ends.items():
        if not device.startswith("cuda"):
            return f"devices.{name}={device}: it goes from the GPU of the policy to the GPU where batches are stored"
    # On other hosts the GPU of that name is another one.
    policy, storing = (device if ":" in device else f"{device}:0" for device in ends.values())
    if cfg.launcher.kind == "local" and policy == storing:
        return (
            f"devices.policy_device and devices.storing_device are both {storing} with launcher=local: NCCL needs a "
            "GPU "
            "of its own for each end"
        )
    return None
