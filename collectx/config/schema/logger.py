"""Options of the section `logger`: one section for each logger, any number of them at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.fields import Section


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
