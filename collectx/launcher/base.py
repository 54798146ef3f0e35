"""Where workers come up that are not processes of the trainer's own machine: what a collector is told of such a place.

Made by the run (`collectx/run/role.py`), used by the collector. Must not know schedulers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Launcher:
    """A place whose workers find the trainer by themselves.

    Attributes:
        announce: called with the trainer\'s `collectx.transport.network.handshake.Endpoint`, once, before `start`.
        start: `start(worker, life)` sees to it that a worker of that index comes, life 0 being the first; returns its
            handle (`collectx.transport.processes.Handle`), or None where nobody can say what becomes of it.
        describe: names a worker in messages.
        join_timeout: `join_timeout(worker)` is the knob that limits how long a worker may take to come, and its value
            in seconds; None where `collector.start_timeout_s` covers that too.
    """

    announce: Callable[[Any], None]
    start: Callable[[int, int], Any]
    describe: Callable[[int], str]
    join_timeout: Callable[[int], tuple[str, float]] | None = None
