"""Options of the group `inference`: which process calls the policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectx.config.schema.fields import Section, at_least, kept, one_of


@dataclass(kw_only=True)
class InferenceConfig(Section):
    kind: str = kept(field(default="local"))


@dataclass(kw_only=True)
class ServerInferenceConfig(InferenceConfig):
    order: str = kept(one_of("auto", "fixed", "ready"))
    max_batch: int | None = at_least(1)
    min_batch: int = at_least(1)
    timeout_s: float = at_least(0)
