"""The complete configuration: the groups, the seed, and the options of the run itself and of its loggers."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.collector import CollectorConfig, InferenceConfig
from collectx.config.schema.env import EnvConfig
from collectx.config.schema.fields import Section, above, at_least, kept, one_of, unsigned, without_effect
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig
from collectx.config.schema.policy import PolicyConfig
from collectx.config.schema.trainer import TrainerConfig


@dataclass(kw_only=True)
class RunOptions(Section):
    """Options of the run. These defaults apply if a configuration has no section `run`."""

    overwrite: bool = False
    max_batches: int | None = field(default=None, metadata={"minimum": 1})
    resume: str | None = field(default=None, metadata={"choices": ("never", "auto")})


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
    max_frames_per_episode: int | None = field(default=100_000, metadata={"minimum": 1})
    exploration_type: str = field(
        default="deterministic", metadata={"choices": ("random", "mode", "mean", "median", "deterministic")}
    )
    seed: int = field(default=1_000_000, metadata={"minimum": 0, "bits": 61})
    video: bool = False
    close_timeout_s: float = field(default=60.0, metadata={"minimum": 0})


@dataclass(kw_only=True)
class TensorBoardLoggerConfig(Section):
    dir: str | None


@dataclass(kw_only=True)
class CsvLoggerConfig(Section):
    file: str | None


@dataclass(kw_only=True)
class WandbLoggerConfig(Section):
    project: str | None
    entity: str | None
    name: str | None
    group: str | None
    tags: list[str] = field(default_factory=list)
    mode: str | None = field(default=None, metadata={"choices": ("online", "offline", "disabled")})


@dataclass(kw_only=True)
class MlflowLoggerConfig(Section):
    tracking_uri: str | None
    experiment: str | None
    name: str | None


@dataclass(kw_only=True)
class CustomLoggerConfig(Section):
    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class LoggerConfig(Section):
    """The loggers of a run. These defaults apply if a configuration has no section `logger`; null: is not used."""

    close_timeout_s: float = field(default=30.0, metadata={"minimum": 0})
    tensorboard: TensorBoardLoggerConfig | None = None
    csv: CsvLoggerConfig | None = None
    wandb: WandbLoggerConfig | None = None
    mlflow: MlflowLoggerConfig | None = None
    custom: CustomLoggerConfig | None = None


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
    """The entries of each run's result that a sweeper gets. No part of a run's configuration, as it does not change the
    run.
    """

    objective: str | list[str] = one_of(*OBJECTIVES)


@dataclass(kw_only=True)
class TuneConfig(Section):
    """How `collectx tune` measures. No part of a run's configuration."""

    minutes: float = above(0, finite=True)
    seconds: float = above(0, finite=True)
    warmup_s: float = at_least(0)
    exact: bool | None


# The sections that only a command reads.
COMMAND_SECTIONS: dict[str, type] = {"sweep": SweepConfig, "tune": TuneConfig}
