"""Options of the group `env`: the envs of each worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.fields import Section, at_least, one_of, unsigned


@dataclass(kw_only=True)
class EnvConfig(Section):
    kind: str
    num_envs: int = at_least(1)


@dataclass(kw_only=True)
class GymnasiumConfig(EnvConfig):
    """Options of `gym` and `gym_vector`."""

    id: str | None
    entry_point: str | None
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    info_keys: list[str] = field(default_factory=list)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class GymEnvConfig(GymnasiumConfig):
    pass


@dataclass(kw_only=True)
class GymVectorEnvConfig(GymnasiumConfig):
    vectorization_mode: str = one_of("vector_entry_point", "sync", "async")
    context: str | None = one_of("forkserver", "spawn", "fork")
    autoreset_mode: str | None = one_of("next_step", "same_step", "disabled")


@dataclass(kw_only=True)
class EnvPoolEnvConfig(EnvConfig):
    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    num_threads: int = unsigned(31)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class TorchrlEnvConfig(EnvConfig):
    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    exclude_keys: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class DatasetEnvConfig(EnvConfig):
    dir: str


@dataclass(kw_only=True)
class CountingEnvConfig(EnvConfig):
    episode_length: int = at_least(1)
    observation_size: int = at_least(3)
    step_s: float = at_least(0, finite=True)
