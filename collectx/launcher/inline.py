"""`launcher=inline`: workers are generators in the trainer's process, which the inline transport advances. For
`collector=single`, and for debugging.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectx.launcher.base import Launcher


class InlineLauncher(Launcher):
    """The handle of a worker is its generator."""

    is_local = True

    def start(self, worker: int, life: int) -> Iterator[None]:
        function, arguments = self._entry(worker, life)
        return function(*arguments)
