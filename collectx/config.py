"""The schema of a run: one dataclass per choice of a group. Types and defaults of types only: the values that a user
sees, and their documentation, are YAML under `conf/`, so no default is written twice.

`kind` names the implementation: `env.kind=gym` is built by `collectx/env/gym.py`. What a single field may hold stands
in its metadata (`at_least`, `one_of`, ...); cross-field rules are in `collectx/run/rules.py`. Both are checked by
`collectx/cli/typed.py`. Imports neither torch nor gymnasium, so that the command line stays quick.
"""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class GymVectorEnvConfig(EnvConfig):
    id: str | None = MISSING
    entry_point: str | None = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    info_keys: list[str] = field(default_factory=list)
    vectorization_mode: str = one_of("vector_entry_point", "sync", "async")
    autoreset_mode: str | None = one_of("next_step", "same_step", "disabled")


@dataclass
class EnvPoolEnvConfig(EnvConfig):
    id: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_threads: int = at_least(0)


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
    exploration_type: str = one_of("random", "mode", "mean", "deterministic")
    num_slots: int = at_least(1)
    zero_copy: bool = MISSING
    start_timeout_s: float = above(0)
    worker_timeout_s: float = above(0)
    close_timeout_s: float = at_least(0)


# --- backend, launcher, devices ---


@dataclass
class BackendConfig:
    kind: str = MISSING


@dataclass
class LauncherConfig:
    kind: str = MISSING
    hydra_mode: str | None = one_of("RUN", "MULTIRUN")
    num_threads: int = at_least(1)
    pin_cores: bool = MISSING


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
class CustomTrainerConfig(TrainerConfig):
    digest: bool = MISSING
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)


# --- the whole ---


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


# The groups, in the order of the data path; a choice in each is needed.
GROUPS = ("env", "policy", "collector", "backend", "launcher", "devices", "trainer")

# Which dataclass describes which `kind` of each group: what `kind:` may say, and how a choice is typed.
KINDS: dict[str, dict[str, type]] = {
    "env": {
        "gym": GymEnvConfig,
        "gym_vector": GymVectorEnvConfig,
        "envpool": EnvPoolEnvConfig,
        "counting": CountingEnvConfig,
    },
    "policy": {
        "random": RandomPolicyConfig,
        "mlp": MlpPolicyConfig,
        "cnn": CnnPolicyConfig,
        "custom": CustomPolicyConfig,
    },
    "collector": {"single": CollectorConfig, "multi_sync": CollectorConfig, "multi_async": CollectorConfig},
    "backend": {"auto": BackendConfig, "inline": BackendConfig, "shared_memory": BackendConfig},
    "launcher": {"inline": LauncherConfig, "local": LauncherConfig},
    "devices": {},
    "trainer": {
        "meter": MeterTrainerConfig,
        "ppo": PpoTrainerConfig,
        "impala": ImpalaTrainerConfig,
        "custom": CustomTrainerConfig,
    },
}
