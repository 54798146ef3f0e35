"""Sync schedules: every batch has a part of every worker that takes part when the batch is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import Arrival


class SyncSchedule(Schedule):
    """One part of every worker, stacked in order of worker index. Each worker has one slot."""

    stacked = require_latest = True
    num_slots = 1

    def __init__(self, num_workers: int):
        self._workers = list(range(num_workers))
        self._parts: dict[int, Arrival] = {}
        # Workers whose part of the requested batch has not arrived.
        self._missing: set[int] = set()
        self._is_requested = False

    def begin(self) -> Iterable[Grant]:
        # After an interrupted wait the slots are still granted; their frames belong to the next batch.
        if self._is_requested or not self._workers:
            return ()
        self._is_requested = True
        self._missing.update(self._workers)
        return [(worker, 0) for worker in self._workers]

    def arrived(self, arrival: Arrival) -> None:
        self._parts[arrival.worker] = arrival
        self._missing.discard(arrival.worker)

    def take(self) -> tuple[Arrival, ...] | None:
        if not self._is_requested or self._missing or not self._parts:
            return None
        parts = tuple(self._parts[worker] for worker in sorted(self._parts))
        self._parts.clear()
        self._is_requested = False
        return parts

    def undelivered(self) -> list[tuple[Arrival, ...]]:
        return (
            [] if self._missing or not self._parts else [tuple(self._parts[worker] for worker in sorted(self._parts))]
        )

    def restore(self, arrivals: tuple[Arrival, ...]) -> None:
        self._parts = {arrival.worker: arrival for arrival in arrivals}
        self._is_requested = True

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        return ()

    def replaced(self, worker: int) -> Iterable[Grant]:
        return [(worker, 0)] if worker in self._missing else ()

    def dropped(self, worker: int) -> None:
        # A part that the worker delivered before is complete and stays in its batch.
        self._workers.remove(worker)
        self._missing.discard(worker)
        if not self._missing and not self._parts:
            self._is_requested = False  # nothing is left of the batch: workers that have joined meanwhile begin another

    def joined(self, worker: int) -> None:
        self._workers.append(worker)


class PreemptiveSchedule(SyncSchedule):
    """Ends a batch early, once a share of the workers has delivered: the others deliver the frames that they have.

    Args:
        threshold: this share; at least one worker.

    Attributes:
        preempt: called with True to end the batch early, with False when it is complete. To be set before use.
    """

    preempt: Callable[[bool], None]

    def __init__(self, num_workers: int, threshold: float):
        super().__init__(num_workers)
        self._threshold = threshold

    def arrived(self, arrival: Arrival) -> None:
        super().arrived(arrival)
        if self._missing and len(self._parts) >= max(1, self._threshold * (len(self._parts) + len(self._missing))):
            self.preempt(True)

    def take(self) -> tuple[Arrival, ...] | None:
        parts = super().take()
        if parts is not None:
            self.preempt(False)
        return parts
