"""The order in which batches are asked for and delivered. Decisions only: no processes, no clocks, no memory.

A schedule speaks of grants `(worker, slot)`, which the collector passes to the transport:

    begin()            the trainer asks for a batch; which slots may be filled now
    arrived(arrival)   a slot is full
    take()             the arrivals that make the next batch, or None while it is incomplete
    released(arrivals) a batch's memory was read; which slots may be filled again
    replaced(worker)   another worker has taken the place of one that is gone; which slots it may fill
    should_preempt            whether the parts that are still missing are to end with the frames that they have
    dropped(worker)    nobody takes its place
    published(version) these are the newest weights now
    must_wait_to_publish  whether newer weights have to wait: parts that must act with the current ones are missing
    skip(batches)      so many fewer batches are left to be delivered

    sync:   next() -> grant all -> wait for all -> one joined batch          workers rest while the trainer learns
    async:  grants are always out; each arrival is a batch of its own        workers never rest while a slot is free
    again:  async in the order of another run (`collectx/schedule/replay.py`)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from collectx.transport.base import Arrival

Grant = tuple[int, int]


class Schedule(Protocol):
    """See the module's docstring.

    Attributes:
        joined: whether a batch is a part of each worker.
        require_latest: whether a slot must be filled with the weights that were the newest when it was granted, or with
            newer ones.
        num_slots: of each worker.
    """

    joined: bool
    require_latest: bool
    num_slots: int

    @property
    def should_preempt(self) -> bool: ...
    @property
    def must_wait_to_publish(self) -> bool: ...
    def begin(self) -> Iterable[Grant]: ...
    def arrived(self, arrival: Arrival) -> None: ...
    def take(self) -> tuple[Arrival, ...] | None: ...
    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]: ...
    def replaced(self, worker: int) -> Iterable[Grant]: ...
    def dropped(self, worker: int) -> None: ...
    def published(self, version: int) -> None: ...
    def skip(self, batches: int) -> None: ...
    def added(self, worker: int) -> Iterable[Grant]: ...


class SyncSchedule:
    """One part of every worker, joined in order of worker index. One slot each, as nobody runs ahead.

    Args:
        threshold: the share of the workers, of which at least one, for which a batch waits before it should_preempt the
            others. None: it waits for all.
    """

    joined = require_latest = True
    must_wait_to_publish = False
    num_slots = 1

    def __init__(self, num_workers: int, threshold: float | None = None):
        self._workers = list(range(num_workers))
        self._threshold = threshold
        self._asked = False
        self._parts: dict[int, Arrival] = {}

    @property
    def should_preempt(self) -> bool:
        if self._threshold is None or self._is_complete:
            return False
        return len(self._parts) >= max(1, self._threshold * len(self._workers))

    def begin(self) -> Iterable[Grant]:
        # An interrupted wait leaves its grants out: what they bring belongs to the batch that is asked for next.
        if self._asked:
            return ()
        self._asked = True
        return [(worker, 0) for worker in self._workers]

    def arrived(self, arrival: Arrival) -> None:
        self._parts[arrival.worker] = arrival

    def take(self) -> tuple[Arrival, ...] | None:
        if not self._asked or not self._is_complete:
            return None
        parts = tuple(self._parts[worker] for worker in sorted(self._parts))
        self._parts.clear()
        self._asked = False
        return parts

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        return ()

    def replaced(self, worker: int) -> Iterable[Grant]:
        return [(worker, 0)] if self._asked and worker not in self._parts else ()

    def dropped(self, worker: int) -> None:
        # A part that it delivered before is whole and stays in its batch.
        self._workers.remove(worker)

    def published(self, version: int) -> None:
        pass

    def skip(self, batches: int) -> None:
        pass  # nobody runs ahead

    def added(self, worker: int) -> Iterable[Grant]:
        self._workers.append(worker)
        return [(worker, 0)] if self._asked else ()

    @property
    def _is_complete(self) -> bool:
        return bool(self._parts) and all(worker in self._parts for worker in self._workers)


class AsyncSchedule:
    """First ready, first served. No more batches are granted than will be delivered, except that the end of a run does
    not wait for workers that have never come.

    Args:
        num_slots: slots of each worker: one being filled, the others full or free.
        num_batches: how many will be delivered; None is endless.
        exact: the end waits for those workers too, and no batch more is granted.
    """

    joined = require_latest = False
    should_preempt = False

    def __init__(self, num_workers: int, num_slots: int, num_batches: int | None, exact: bool = False):
        self.num_slots = num_slots
        self._exact = exact
        self._left = num_batches
        # Slot 0 of every worker first, so that a small budget is spread over them.
        self._free: deque[Grant] = deque((worker, slot) for slot in range(num_slots) for worker in range(num_workers))
        self._out: dict[int, list[int]] = {worker: [] for worker in range(num_workers)}
        # Workers that have delivered something; the others may still wait in a scheduler's queue.
        self._seen: set[int] = set()
        self._full: deque[Arrival] = deque()

    def begin(self) -> Iterable[Grant]:
        return self._affordable() or self._taken_over()

    @property
    def must_wait_to_publish(self) -> bool:
        return False

    def arrived(self, arrival: Arrival) -> None:
        self._out[arrival.worker].remove(arrival.slot)
        self._seen.add(arrival.worker)
        self._full.append(arrival)

    def take(self) -> tuple[Arrival, ...] | None:
        return (self._full.popleft(),) if self._full else None

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        self._free.extend((arrival.worker, arrival.slot) for arrival in arrivals if arrival.worker in self._out)
        return self._affordable()

    def replaced(self, worker: int) -> Iterable[Grant]:
        self._seen.discard(worker)
        return [(worker, slot) for slot in self._out[worker]]

    def dropped(self, worker: int) -> None:
        lost = self._out.pop(worker)
        self._seen.discard(worker)
        if self._left is not None:
            self._left += len(lost)
        self._free = deque(grant for grant in self._free if grant[0] != worker)

    def published(self, version: int) -> None:
        pass

    def skip(self, batches: int) -> None:
        if self._left is not None:
            self._left -= batches

    def added(self, worker: int) -> Iterable[Grant]:
        self._out[worker] = []
        self._free.extend((worker, slot) for slot in range(self.num_slots))
        return self._affordable()

    def _affordable(self) -> list[Grant]:
        grants: list[Grant] = []
        while self._free and (self._left is None or self._left > 0):
            worker, slot = self._free.popleft()
            self._out[worker].append(slot)
            grants.append((worker, slot))
            if self._left is not None:
                self._left -= 1
        return grants

    def _taken_over(self) -> list[Grant]:
        """One more batch, where all that is out is with workers that have delivered nothing."""
        if self._exact or any(self._out[worker] for worker in self._seen):
            return []
        grant = next((grant for grant in self._free if grant[0] in self._seen), None)
        if grant is None:
            return []
        self._free.remove(grant)
        self._out[grant[0]].append(grant[1])
        return [grant]
