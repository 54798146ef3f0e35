"""Options of the group `env`: the envs of each worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from collectx.config.schema.fields import at_least, one_of


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
