"""`launcher=inline`: workers are generators in the trainer's process, which the inline transport advances. For
`collector=single`, and for debugging.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from collectx.config.schema.run import RunConfig
from collectx.launcher.base import AnyHandle, Entry, Launcher


def build(cfg: RunConfig, log_dir: Path | None) -> InlineLauncher:
    """See `collectx.config.registry`."""
    return InlineLauncher()


class InlineLauncher(Launcher):
    """The handle of a worker is its generator."""

    is_local = True

    def start(self, worker: int, entry: Entry, restarts: int = 0, previous: AnyHandle | None = None) -> Iterator[None]:
        function, arguments = entry
        return function(*arguments)
