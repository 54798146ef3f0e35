"""The schema of a run: one dataclass per choice of a group. Types and defaults of types only: the values that a user
sees, and their documentation, are YAML under `conf/`, so no default is written twice.

`kind` names the implementation: `env.kind=gym` is built by `collectx/env/gym.py`. Cross-field rules are in
`collectx/run/rules.py`. Imports neither torch nor gymnasium, so that the command line stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

# --- env: a group of `num_envs` envs in each worker ---


@dataclass
class EnvConfig:
    kind: str = MISSING
    num_envs: int = MISSING


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
    vectorization_mode: str = MISSING
    autoreset_mode: str | None = MISSING


@dataclass
class EnvPoolEnvConfig(EnvConfig):
    id: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_threads: int = MISSING


@dataclass
class CountingEnvConfig(EnvConfig):
    episode_length: int = MISSING
    observation_size: int = MISSING
    step_s: float = MISSING


# --- policy: what acts in the workers ---


@dataclass
class PolicyConfig:
    kind: str = MISSING


@dataclass
class RandomPolicyConfig(PolicyConfig):
    pass


@dataclass
class MlpPolicyConfig(PolicyConfig):
    hidden_sizes: list[int] = MISSING
    activation: str = MISSING


@dataclass
class CnnPolicyConfig(PolicyConfig):
    channels: list[int] = MISSING
    kernel_sizes: list[int] = MISSING
    strides: list[int] = MISSING
    hidden_size: int = MISSING
    scale: float = MISSING


@dataclass
class CustomPolicyConfig(PolicyConfig):
    target: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)


# --- collector: the schedule, and how much ---


@dataclass
class CollectorConfig:
    kind: str = MISSING
    num_workers: int = MISSING
    frames_per_batch: int = MISSING
    total_frames: int = MISSING
    exploration_type: str = MISSING
    num_slots: int = MISSING
    zero_copy: bool = MISSING
    start_timeout_s: float = MISSING
    worker_timeout_s: float = MISSING
    close_timeout_s: float = MISSING


# --- backend, launcher, devices ---


@dataclass
class BackendConfig:
    kind: str = MISSING


@dataclass
class LauncherConfig:
    kind: str = MISSING
    hydra_mode: str | None = MISSING
    num_threads: int = MISSING


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
    learning_rate: float = MISSING
    anneal: bool = MISSING
    gamma: float = MISSING
    gae_lambda: float = MISSING
    num_epochs: int = MISSING
    minibatch_size: int = MISSING
    clip_epsilon: float = MISSING
    entropy_coeff: float = MISSING
    critic_coeff: float = MISSING
    max_grad_norm: float = MISSING
    normalize_advantage: bool = MISSING
    target_return: float | None = MISSING


@dataclass
class ImpalaTrainerConfig(TrainerConfig):
    digest: bool = MISSING
    learning_rate: float = MISSING
    anneal: bool = MISSING
    gamma: float = MISSING
    rho_clip: float = MISSING
    c_clip: float = MISSING
    entropy_coeff: float = MISSING
    critic_coeff: float = MISSING
    max_grad_norm: float = MISSING
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
    seed: int = MISSING


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
