"""The schema of a run: one dataclass per choice of a group. Types and defaults of types only: the values that a user
sees, and their documentation, are YAML under `conf/`, so no default is written twice.

`kind` names the implementation: `env.kind=gym` is built by `collectx/env/gym.py`. What a single field may hold stands
in its metadata (`at_least`, `one_of`, ...); cross-field rules are in `collectx/run/rules.py`. Both are checked by
`collectx/cli/typed.py`. Imports neither torch nor gymnasium, so that the command line stays quick.
"""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, get_type_hints

from omegaconf import MISSING

# --- what one field may hold; read by `collectx/cli/typed.py` ---


def at_least(minimum: float) -> Any:
    """A number, or a list of numbers, none below `minimum`."""
    return field(default=MISSING, metadata={"minimum": minimum})


def above(bound: float) -> Any:
    """A number greater than `bound`."""
    return field(default=MISSING, metadata={"above": bound})


def within(minimum: float, maximum: float) -> Any:
    """A number from `minimum` to `maximum`, both included."""
    return field(default=MISSING, metadata={"minimum": minimum, "maximum": maximum})


def count_or_endless() -> Any:
    """A positive count, or -1 for no end."""
    return field(default=MISSING, metadata={"minimum": 1, "also": (-1,)})


def one_of(*names: str) -> Any:
    """One of these words."""
    return field(default=MISSING, metadata={"choices": names})


# --- env: a group of `num_envs` envs in each worker ---


@dataclass
class EnvConfig:
    kind: str = MISSING
    num_envs: int = at_least(1)


@dataclass
class GymEnvConfig(EnvConfig):
    id: str | None = MISSING
    entry_point: str | None = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    info_keys: list[str] = field(default_factory=list)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass
class GymVectorEnvConfig(EnvConfig):
    id: str | None = MISSING
    entry_point: str | None = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    info_keys: list[str] = field(default_factory=list)
    vectorization_mode: str = one_of("vector_entry_point", "sync", "async")
    autoreset_mode: str | None = one_of("next_step", "same_step", "disabled")
    exclude_keys: list[str] = field(default_factory=list)


@dataclass
class EnvPoolEnvConfig(EnvConfig):
    id: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_threads: int = at_least(0)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass
class TorchrlEnvConfig(EnvConfig):
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass
class CountingEnvConfig(EnvConfig):
    episode_length: int = at_least(1)
    observation_size: int = at_least(3)
    step_s: float = at_least(0)


# --- policy: what acts in the workers ---


@dataclass
class PolicyConfig:
    kind: str = MISSING


@dataclass
class RandomPolicyConfig(PolicyConfig):
    pass


@dataclass
class MlpPolicyConfig(PolicyConfig):
    hidden_sizes: list[int] = at_least(1)
    activation: str = one_of("tanh", "relu", "silu", "gelu", "elu")


@dataclass
class CnnPolicyConfig(PolicyConfig):
    channels: list[int] = at_least(1)
    kernel_sizes: list[int] = at_least(1)
    strides: list[int] = at_least(1)
    hidden_size: int = at_least(1)
    scale: float = above(0)


@dataclass
class QMlpPolicyConfig(MlpPolicyConfig):
    pass


@dataclass
class QCnnPolicyConfig(CnnPolicyConfig):
    pass


@dataclass
class CustomPolicyConfig(PolicyConfig):
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)


# --- collector: the schedule, and how much ---


@dataclass
class CollectorConfig:
    kind: str = MISSING
    num_workers: int = at_least(1)
    frames_per_batch: int = at_least(1)
    total_frames: int = count_or_endless()
    exploration_type: str = one_of("random", "mode", "mean", "median", "deterministic")
    num_slots: int = at_least(1)
    zero_copy: bool = MISSING
    on_worker_failure: str = one_of("raise", "restart", "drop")
    max_restarts: int = at_least(0)
    start_timeout_s: float = above(0)
    worker_timeout_s: float = above(0)
    close_timeout_s: float = at_least(0)
    num_workers_per_collector: int = at_least(1)
    inner: str = one_of("sync", "async", "single")
    max_frames_per_traj: int | None = at_least(1)
    init_random_frames: int | None = at_least(0)
    reset_at_each_iter: bool = MISSING
    set_truncated: bool = MISSING
    refresh: str = one_of("batch", "step")
    preemptive_threshold: float | None = within(0, 1)
    trajs_per_batch: int | None = at_least(1)
    traj_format: str = one_of("padded", "cat")
    compact_obs: bool = MISSING
    check_finite: bool = MISSING
    order_of: str | None = MISSING


@dataclass
class EitherCollectorConfig(CollectorConfig):
    """Of a kind that can be both."""

    sync: bool = MISSING


# --- backend, launcher, devices ---


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


# --- trainer: what consumes the batches ---


@dataclass
class TrainerConfig:
    kind: str = MISSING


@dataclass
class MeterTrainerConfig(TrainerConfig):
    digest: bool = MISSING


@dataclass
class PpoTrainerConfig(TrainerConfig):
    digest: bool = MISSING
    learning_rate: float = above(0)
    anneal: bool = MISSING
    gamma: float = within(0, 1)
    gae_lambda: float = within(0, 1)
    num_epochs: int = at_least(1)
    minibatch_size: int = at_least(1)
    clip_epsilon: float = above(0)
    entropy_coeff: float = at_least(0)
    critic_coeff: float = at_least(0)
    max_grad_norm: float = above(0)
    normalize_advantage: bool = MISSING
    target_return: float | None = MISSING


@dataclass
class ImpalaTrainerConfig(TrainerConfig):
    digest: bool = MISSING
    learning_rate: float = above(0)
    anneal: bool = MISSING
    gamma: float = within(0, 1)
    rho_clip: float = above(0)
    c_clip: float = above(0)
    entropy_coeff: float = at_least(0)
    critic_coeff: float = at_least(0)
    max_grad_norm: float = above(0)
    target_return: float | None = MISSING


@dataclass
class DqnTrainerConfig(TrainerConfig):
    digest: bool | None = MISSING
    learning_rate: float = above(0)
    anneal: bool = MISSING
    gamma: float = within(0, 1)
    num_steps: int = at_least(1)
    buffer_frames: int = at_least(1)
    warmup_frames: int = at_least(0)
    batch_size: int = at_least(1)
    updates_per_frame: float = above(0)
    target_rate: float = within(0, 1)
    epsilon_start: float = within(0, 1)
    epsilon_end: float = within(0, 1)
    epsilon_frames: int = at_least(0)
    priority_alpha: float | None = at_least(0)
    priority_beta: float = at_least(0)
    max_grad_norm: float = above(0)
    target_return: float | None = MISSING


@dataclass
class CustomTrainerConfig(TrainerConfig):
    digest: bool | None = MISSING
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)


# --- the whole ---


@dataclass
class RunOptions:
    """Of the run as a whole. These defaults hold where a configuration has no section `run`."""

    overwrite: bool = False
    max_batches: int | None = field(default=None, metadata={"minimum": 1})


@dataclass
class RunConfig:
    env: EnvConfig = MISSING
    policy: PolicyConfig = MISSING
    collector: CollectorConfig = MISSING
    backend: BackendConfig = MISSING
    launcher: LauncherConfig = MISSING
    devices: DevicesConfig = MISSING
    trainer: TrainerConfig = MISSING
    seed: int = at_least(0)
    run: RunOptions = field(default_factory=RunOptions)


@dataclass
class SweepConfig:
    """What a sweeper learns of each run. No part of a run's configuration, as it does not change the run."""

    objective: str = one_of("mean_return", "frames_per_s", "num_episodes", "frames", "batches", "wall_s", "start_s")


def as_dict(cfg: Any) -> dict[str, Any]:
    """A configuration, or one group of it, as plain data."""
    return asdict(cfg)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """The configuration of `as_dict`, which is complete and right: nothing is checked."""
    groups = {group: group_from_dict(group, values[group]) for group in GROUPS}
    return RunConfig(**groups, seed=values["seed"], run=RunOptions(**values.get("run", {})))


def group_from_dict(group: str, values: dict[str, Any]) -> Any:
    """One group, as in `group_from_dict("env", as_dict(cfg.env))`."""
    if values.get("kind") == "given":
        return EnvConfig(**values) if group == "env" else PolicyConfig(**values)
    cls = DevicesConfig if group == "devices" else KINDS[group][values["kind"]]
    hints = get_type_hints(cls)
    return cls(**{key: hints[key](**value) if is_dataclass(hints[key]) else value for key, value in values.items()})


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


# The groups, in the order of the data path; a choice in each is needed.
GROUPS = ("env", "policy", "collector", "backend", "launcher", "devices", "trainer")

# Which dataclass describes which `kind` of each group: what `kind:` may say, and how a choice is typed.
KINDS: dict[str, dict[str, type]] = {
    "env": {
        "gym": GymEnvConfig,
        "gym_vector": GymVectorEnvConfig,
        "envpool": EnvPoolEnvConfig,
        "torchrl": TorchrlEnvConfig,
        "counting": CountingEnvConfig,
    },
    "policy": {
        "random": RandomPolicyConfig,
        "mlp": MlpPolicyConfig,
        "cnn": CnnPolicyConfig,
        "q_mlp": QMlpPolicyConfig,
        "q_cnn": QCnnPolicyConfig,
        "custom": CustomPolicyConfig,
    },
    "collector": {
        "single": CollectorConfig,
        "multi_sync": CollectorConfig,
        "multi_async": CollectorConfig,
        "distributed": CollectorConfig,
        "distributed_sync": CollectorConfig,
        "rpc": EitherCollectorConfig,
        "ray": EitherCollectorConfig,
    },
    "backend": {
        **dict.fromkeys(("auto", "inline", "shared_memory", *GROUP_BACKENDS), BackendConfig),
        "rpc": RpcBackendConfig,
        "ray": BackendConfig,
    },
    "launcher": {
        "inline": LauncherConfig,
        "local": LauncherConfig,
        "slurm": SlurmLauncherConfig,
        "submitit": SubmititLauncherConfig,
        "submitit_delayed": SubmititDelayedLauncherConfig,
        "ray": RayLauncherConfig,
    },
    "devices": {},
    "trainer": {
        "meter": MeterTrainerConfig,
        "ppo": PpoTrainerConfig,
        "impala": ImpalaTrainerConfig,
        "dqn": DqnTrainerConfig,
        "custom": CustomTrainerConfig,
    },
}
