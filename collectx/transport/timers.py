"""The timers of workers that owe a batch or a reply."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from collectx.transport.handles import Limit
from collectx.transport.peer import Peer


class PeerTimers:
    """A timer for each worker that owes a batch or a reply. `now_s` is the time by which timers expire. It follows
    `clock` only in `advance`. `longest_gap_s` is the maximum number of seconds by which one `advance` moves `now_s`."""

    def __init__(self, longest_gap_s: float, clock: Callable[[], float]):
        self.now_s = 0.0
        self._longest_gap_s = longest_gap_s
        self._clock = clock
        self._advanced_s = clock()
        # For each limit, the workers and their start times, the oldest first. Separate, so that a worker with a long
        # limit does not hide one with a short limit.
        self._started: dict[Limit, OrderedDict[Peer, float]] = {}

    def advance(self) -> None:
        before_s, self._advanced_s = self._advanced_s, self._clock()
        self.now_s += min(self._advanced_s - before_s, self._longest_gap_s)

    def start(self, peer: Peer, limit: Limit) -> None:
        """Starts the timer of a worker, and sets its `limit`."""
        self.advance()
        peer.limit = limit
        self._started.setdefault(limit, OrderedDict())[peer] = self.now_s

    def stop(self, peer: Peer) -> None:
        """Stops a worker's timer, if it is running, and clears its `limit`."""
        if peer.limit is not None:
            del self._started[peer.limit][peer]
            peer.limit = None

    @property
    def are_running(self) -> bool:
        """Whether any timer is running."""
        return any(self._started.values())

    def next(self) -> tuple[float, Any] | None:
        """Returns the time at which the next timer expires, and its worker; None if no timer is running."""
        oldest = [(*next(iter(started.items())), limit_s) for (_, limit_s), started in self._started.items() if started]
        if not oldest:
            return None
        return min(((start_s + limit_s, peer) for peer, start_s, limit_s in oldest), key=lambda entry: entry[0])
