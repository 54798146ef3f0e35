"""Starts no process: workers run in the trainer's process, one batch each time the transport asks for one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any


class InlineLauncher:
    """Makes one generator per worker."""

    def start(
        self, entry: Callable[..., Generator[None]], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Generator[None]]:
        """`entry(*element)` for each element: generators that have not begun to run."""
        return [entry(*element) for element in arguments]
