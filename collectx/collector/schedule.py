"""The order in which batches are asked for and delivered. Decisions only: no processes, no clocks, no memory.

A schedule speaks of grants `(worker, slot)`, which the collector passes to the transport:

    begin()            the trainer asks for a batch; which slots may be filled now
    arrived(arrival)   a slot is full; the arrivals that make the next batch, or None while it is incomplete
    released(arrivals) a batch's memory was read; which slots may be filled again

    sync:   next() -> grant all -> wait for all -> one joined batch          workers rest while the trainer learns
    async:  grants are always out; each arrival is a batch of its own        workers never rest while a slot is free
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from collectx.transport.base import Arrival

Grant = tuple[int, int]


class Schedule(Protocol):
    """See the module's docstring."""

    joined: bool
    num_slots: int

    def begin(self) -> Iterable[Grant]: ...
    def arrived(self, arrival: Arrival) -> tuple[Arrival, ...] | None: ...
    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]: ...


class SyncSchedule:
    """One part of every worker, joined in order of worker index. One slot each, as nobody runs ahead."""

    joined = True
    num_slots = 1

    def __init__(self, num_workers: int):
        self._num_workers = num_workers
        self._asked = False
        self._parts: dict[int, Arrival] = {}

    def begin(self) -> Iterable[Grant]:
        # An interrupted wait leaves its grants out: what they bring belongs to the batch that is asked for next.
        if self._asked:
            return ()
        self._asked = True
        return [(worker, 0) for worker in range(self._num_workers)]

    def arrived(self, arrival: Arrival) -> tuple[Arrival, ...] | None:
        self._parts[arrival.worker] = arrival
        if len(self._parts) < self._num_workers:
            return None
        parts = tuple(self._parts[worker] for worker in range(self._num_workers))
        self._parts.clear()
        self._asked = False
        return parts

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        return ()


class AsyncSchedule:
    """First ready, first served. No more batches are granted than will be delivered.

    Args:
        num_slots: slots of each worker: one being filled, the others full or free.
        num_batches: how many will be delivered; None is endless.
    """

    joined = False

    def __init__(self, num_workers: int, num_slots: int, num_batches: int | None):
        self.num_slots = num_slots
        self._left = num_batches
        # Slot 0 of every worker first, so that a small budget is spread over them.
        self._free: list[Grant] = [(worker, slot) for slot in range(num_slots) for worker in range(num_workers)]

    def begin(self) -> Iterable[Grant]:
        free, self._free = self._free, []
        return self._affordable(free)

    def arrived(self, arrival: Arrival) -> tuple[Arrival, ...] | None:
        return (arrival,)

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        return self._affordable([(arrival.worker, arrival.slot) for arrival in arrivals])

    def _affordable(self, grants: list[Grant]) -> list[Grant]:
        if self._left is not None:
            grants = grants[: self._left]
            self._left -= len(grants)
        return grants
