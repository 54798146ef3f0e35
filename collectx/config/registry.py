"""Which dataclass describes each `kind` of each group. A new kind is entered here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from collectx.config.derived import GROUP_BACKENDS
from collectx.config.schema.collector import (
    CollectorConfig,
    EitherCollectorConfig,
)
from collectx.config.schema.env import (
    CountingEnvConfig,
    EnvConfig,
    EnvPoolEnvConfig,
    GymEnvConfig,
    GymVectorEnvConfig,
    TorchrlEnvConfig,
)
from collectx.config.schema.launcher import (
    BackendConfig,
    DevicesConfig,
    LauncherConfig,
    RayLauncherConfig,
    RpcBackendConfig,
    SlurmLauncherConfig,
    SubmititDelayedLauncherConfig,
    SubmititLauncherConfig,
)
from collectx.config.schema.policy import (
    CnnPolicyConfig,
    CustomPolicyConfig,
    MlpPolicyConfig,
    PolicyConfig,
    QCnnPolicyConfig,
    QMlpPolicyConfig,
    RandomPolicyConfig,
)
from collectx.config.schema.run import (
    RunConfig,
    RunOptions,
)
from collectx.config.schema.trainer import (
    CustomTrainerConfig,
    DqnTrainerConfig,
    ImpalaTrainerConfig,
    MeterTrainerConfig,
    PpoTrainerConfig,
)

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


def from_dict(values: dict[str, Any]) -> RunConfig:
    """The inverse of `as_dict`; checks nothing."""
    groups = {group: group_from_dict(group, values[group]) for group in GROUPS}
    return RunConfig(**groups, seed=values["seed"], run=RunOptions(**values.get("run", {})))


def group_from_dict(group: str, values: dict[str, Any]) -> Any:
    """One group, as in `group_from_dict("env", as_dict(cfg.env))`."""
    if values.get("kind") == "given":
        return EnvConfig(**values) if group == "env" else PolicyConfig(**values)
    cls = DevicesConfig if group == "devices" else KINDS[group][values["kind"]]
    hints = get_type_hints(cls)
    return cls(**{key: hints[key](**value) if is_dataclass(hints[key]) else value for key, value in values.items()})


def limits_of(path: str) -> Mapping[str, Any]:
    """The range of an option, as `limits_of("collector.num_slots")`; see `collectx.config.schema.fields`."""
    group, _, name = path.rpartition(".")
    classes: Iterable[Any] = KINDS[group].values() if KINDS.get(group) else (DevicesConfig, RunConfig)
    return next(field.metadata for cls in classes for field in fields(cls) if field.name == name)
