"""`launcher=inline`: workers are generators in the trainer's process, for debugging any collector."""

from __future__ import annotations

from collections.abc import Iterator

from collectx.config.problem import Problem
from collectx.place.base import Place


class Inline(Place):
    is_local = True

    def _default_backend(self) -> str:
        return "inline"

    def _backend_problems(self) -> Iterator[Problem]:
        """Every collector can be inline."""
        choice = "`launcher=inline`" if self.cfg.collector.has_workers else "`collector=single`"
        yield from self._without_transport(choice)
