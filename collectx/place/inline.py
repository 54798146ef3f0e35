"""`launcher=inline`: workers are generators in the trainer's process, which the inline transport advances. For
`collector=single`, and for debugging."""

from __future__ import annotations

from collections.abc import Iterator

from collectx.config.problem import Problem
from collectx.place.base import Place
from collectx.place.launcher import AnyHandle, Entry, Launcher


class Inline(Place):
    is_local = True

    def _default_backend(self) -> str:
        return "inline"

    def _backend_problems(self) -> Iterator[Problem]:
        """Every collector can be inline."""
        choice = "collector=single" if self.cfg.collector.schedule == "single" else "launcher=inline"
        yield from self._without_transport(choice)


class InlineLauncher(Launcher):
    """The handle of a worker is its generator."""

    is_local = True

    def start(self, worker: int, entry: Entry, restarts: int = 0, previous: AnyHandle | None = None) -> Iterator[None]:
        function, arguments = entry
        return function(*arguments)
