"""The complete configuration: the groups, the seed, and the options of the run itself."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass, field

from collectx.config.schema.collector import CollectorConfig
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.fields import Section, above, at_least, kept, one_of, unsigned, without_effect
from collectx.config.schema.inference import InferenceConfig
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig
from collectx.config.schema.logger import LoggerConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.trainer import TrainerConfig


@dataclass(kw_only=True)
class RunOptions(Section):
    """Options of the run. These defaults apply if a configuration has no section `run`."""

    overwrite: bool = False
    max_batches: int | None = field(default=None, metadata={"minimum": 1})
    resume: str = field(default="never", metadata={"choices": ("never", "auto")})


@dataclass(kw_only=True)
class CheckpointOptions(Section):
    """When checkpoints are written. These defaults hold where a configuration has no section `checkpoint`."""

    every_batches: int | None = field(default=None, metadata={"minimum": 1})
    every_min: float | None = field(default=10.0, metadata={"above": 0})
    keep: int = field(default=2, metadata={"minimum": 1})
    grace_s: float = field(default=20.0, metadata={"minimum": 0})


@dataclass(kw_only=True)
class EvalOptions(Section):
    """How episodes are evaluated, after a run or during it. These defaults hold where a configuration has no section
    `eval`."""

    every_batches: int | None = field(default=None, metadata={"minimum": 1})
    episodes: int = field(default=10, metadata={"minimum": 1})
    exploration_type: str = field(
        default="deterministic", metadata={"choices": ("random", "mode", "mean", "median", "deterministic")}
    )
    seed: int = field(default=1_000_000, metadata={"minimum": 0, "bits": 61})
    video: bool = False
    close_timeout_s: float = field(default=60.0, metadata={"minimum": 0})


@dataclass(kw_only=True)
class RunConfig(Section):
    env: EnvConfig
    policy: PolicyConfig
    collector: CollectorConfig
    backend: BackendConfig
    launcher: LauncherConfig = without_effect()
    devices: DevicesConfig
    trainer: TrainerConfig
    seed: int = kept(unsigned(61))
    run: RunOptions = without_effect(field(default_factory=RunOptions))
    checkpoint: CheckpointOptions = without_effect(field(default_factory=CheckpointOptions))
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    logger: LoggerConfig = without_effect(field(default_factory=LoggerConfig))
    eval: EvalOptions = without_effect(field(default_factory=EvalOptions))


# The sections of a run that are no groups.
SECTIONS: dict[str, type] = {
    "run": RunOptions,
    "checkpoint": CheckpointOptions,
    "logger": LoggerConfig,
    "eval": EvalOptions,
}


OBJECTIVES = ("mean_return", "frames_per_s", "num_episodes", "frames", "batches", "wall_s", "start_s")
"""Entries of `result.json` by which runs are ranked."""


@dataclass(kw_only=True)
class SweepConfig(Section):
    """What a sweeper learns of each run. No part of a run's configuration, as it does not change the run."""

    objective: str = one_of(*OBJECTIVES)


@dataclass(kw_only=True)
class TuneConfig(Section):
    """How `collectx tune` measures. No part of a run's configuration."""

    minutes: float = above(0, finite=True)
    seconds: float = above(0, finite=True)
    warmup_s: float = at_least(0)
    exact: bool | None


# The sections that only a command reads.
COMMAND_SECTIONS: dict[str, type] = {"sweep": SweepConfig, "tune": TuneConfig}
