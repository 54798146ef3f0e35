"""Numbers of workers, frames and rows that follow from a configuration."""

from __future__ import annotations

import re
from dataclasses import replace

from collectx.config.schema.collector import CollectorConfig, ServerInferenceConfig
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.launcher import DevicesConfig
from collectx.config.schema.run import RunConfig


def acts_in_fixed_order(cfg: RunConfig) -> bool:
    """Whether the inference server, if there is one, acts for all envs in a fixed order."""
    order = cfg.inference.order if isinstance(cfg.inference, ServerInferenceConfig) else "fixed"
    return order == "fixed" or (order == "auto" and cfg.collector.schedule != "async")


def why_not_recorded(cfg: RunConfig) -> str | None:
    """Returns the reason why a run does not record the order in which frames and weights arrived; None if it does, or
    if that order is always the same."""
    collector = cfg.collector
    if not acts_in_fixed_order(cfg):
        order = "with inference=server and inference.order=ready"
        return f"{order}, each policy call serves the envs that wait, which is not recorded"
    if collector.schedule == "async" and collector.refresh == "step":
        return "with collector.refresh=step, the weights change within a batch, which is not recorded"
    if collector.schedule == "async" and collector.num_workers_per_collector > 1 and collector.inner == "async":
        return "with collector.inner=async, the order in which a worker's processes were ready is not recorded"
    return None


def surplus_note(total: int, frames: int, collected_frames: int | None = None, prefix: str = "") -> str | None:
    """Returns a warning if `total` (`total_frames`) is not a multiple of `frames` (`frames_per_batch`), and the batches
    have over 5% more than `total`; otherwise None. `collected_frames` are those of a batch, by default `frames`.
    `prefix` stands before both keys in the message."""
    each = collected_frames or frames
    batches = -(-total // each)
    if total <= 0 or total % frames == 0 or batches * each <= 1.05 * total:
        return None
    collected = f"{batches} batches ({batches * each:,} frames) are"
    if batches == 1:
        collected = f"1 batch ({each:,} frames) is"
    return (
        f"{prefix}total_frames={total} is not a multiple of {prefix}frames_per_batch={frames}, so {collected} "
        "collected."
    )


def total_batches(collector: CollectorConfig) -> int | None:
    """Returns the number of batches that contain `total_frames`; None: no limit."""
    total, frames = collector.total_frames, collector.frames_per_batch
    return None if total < 0 else -(-total // frames)


def expected_batches(cfg: RunConfig) -> int | None:
    """Returns the number of batches of a run unless its trainer ends it: those of `total_frames`, at most
    `run.max_batches`; None: no limit."""
    return min((each for each in (total_batches(cfg.collector), cfg.run.max_batches) if each is not None), default=None)


def expected_frames(cfg: RunConfig) -> int:
    """Returns the frames of a run unless its trainer ends it; -1: no limit."""
    num_batches = expected_batches(cfg)
    return -1 if num_batches is None else num_batches * cfg.collector.frames_per_batch


def env_option(env: EnvConfig) -> str:
    """Returns the option that names the env, as in "env.id=CartPole-v1"; otherwise its kind."""
    names = ((name, getattr(env, name, None)) for name in ("id", "entry_point", "target"))
    return next((f"env.{name}={value}" for name, value in names if value is not None), f"env={env.kind}")


def is_elastic(collector: CollectorConfig) -> bool:
    """Whether a run begins as soon as `min_workers` of its workers are ready, and the others join later."""
    minimum, is_free = collector.min_workers, collector.order_of is None
    return collector.on_worker_failure == "drop" and is_free and minimum is not None and minimum < collector.num_workers


def num_workers_of(collector: CollectorConfig) -> int:
    """Returns the number of workers; 1 for `collector=single`, where the trainer's process is the worker."""
    return collector.num_workers if collector.has_workers else 1


def num_processes_of(collector: CollectorConfig) -> int:
    """Returns the number of processes that step envs: the workers, or the processes in them."""
    return num_workers_of(collector) * collector.num_workers_per_collector


def frames_per_part(collector: CollectorConfig) -> int:
    """Returns how many frames of a batch come from one worker."""
    return collector.frames_per_batch // (collector.num_workers if collector.schedule == "sync" else 1)


def rows_per_env(collector: CollectorConfig) -> int:
    """Returns how many rows of a worker's batch have one env index: its processes if `inner=sync`, otherwise 1."""
    return collector.num_workers_per_collector if collector.inner == "sync" else 1


# The options of a trainer that count frames of the whole run.
_SHARED_SIZES = ("minibatch_size", "batch_size", "buffer_frames", "warmup_frames")


def share_of(cfg: RunConfig, gpu: int = 0) -> RunConfig:
    """Returns what each of several learners collects and learns: its share of the workers, frames, minibatches and
    replay buffer. `cuda` becomes the GPU of this number. Learners listen on `backend.port`, their collectors on any."""
    num_learners, options = cfg.trainer.num_learners, cfg.collector
    if num_learners == 1:
        return cfg
    num_batches, random_frames = total_batches(options), options.init_random_frames
    frames = options.frames_per_batch // num_learners
    collector = replace(
        options,
        num_workers=options.num_workers // num_learners,
        frames_per_batch=frames,
        total_frames=-1 if num_batches is None else num_batches * frames,
        init_random_frames=None if random_frames is None else -(-random_frames // num_learners),
    )
    devices = {name: f"cuda:{gpu}" if value == "cuda" else value for name, value in vars(cfg.devices).items()}
    sizes = {name: getattr(cfg.trainer, name) for name in _SHARED_SIZES if hasattr(cfg.trainer, name)}
    trainer = replace(cfg.trainer, **{name: -(-size // num_learners) for name, size in sizes.items()})
    backend = replace(cfg.backend, port=None)
    return replace(cfg, backend=backend, collector=collector, devices=DevicesConfig(**devices), trainer=trainer)


def is_device(name: str) -> bool:
    """Whether this is a name of a CPU or of a CUDA device."""
    return re.fullmatch(r"(cpu|cuda)(:(0|[1-9]\d*))?", name) is not None


def device_named(name: str) -> str:
    """Returns the same name for all names of a device: cpu, or cuda:0 for cuda."""
    kind, _, index = name.partition(":")
    return kind if kind != "cuda" and index in ("", "0") else f"{kind}:{index or 0}"


def resolve_devices(devices: DevicesConfig) -> DevicesConfig:
    """Returns the devices by TorchRL's rule: `device` is the default of the other three; without it, batches stay on
    the device of the policy and the envs if both share one. Each device has the name that `device_named` returns."""
    named = {name: value and device_named(value) for name, value in vars(devices).items()}
    device = named["device"]
    policy, env = named["policy_device"] or device, named["env_device"] or device
    return DevicesConfig(
        device=device,
        storing_device=named["storing_device"] or device or (policy if policy == env else None),
        policy_device=policy,
        env_device=env,
    )
