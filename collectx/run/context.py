"""What the parts of a run in the trainer's process share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from collectx.config.schema.run import RunConfig
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import ResultBuilder
from collectx.run.signals import Signals
from collectx.run.statistics import Statistics
from collectx.run.words import Words


@dataclass
class RunContext:
    """A run's configuration, folder, signals, and what it has recorded so far.

    Attributes:
        log: the event log, called as `log(name, **fields)`.
        words: what this process tells the other learners.
        stage: what the run does, for the display, while it is not collecting; otherwise "".
    """

    cfg: RunConfig
    folder: RunFolder
    signals: Signals
    record: ResultBuilder
    log: Callable[..., None] = lambda name, **fields: None
    words: Words = field(default_factory=Words)
    stage: str = ""

    @property
    def statistics(self) -> Statistics:
        return self.record.statistics

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Shows the `stage` during the `with` block."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    def add_event(self, name: str, **fields: Any) -> None:
        """Adds an event to the record and the log. Any thread may call it."""
        self.record.add_event(name, fields)
        self.log(name, **fields)
