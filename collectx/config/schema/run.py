"""The whole configuration: the groups, the seed, and the options of the run itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from omegaconf import MISSING

from collectx.config.schema.collector import CollectorConfig
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.fields import at_least, one_of
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.trainer import TrainerConfig


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
