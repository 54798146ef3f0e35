"""Sync schedules: a batch contains a part of every worker that takes part when the batch begins.

With overlap, the workers fill the next batch while the trainer learns from the last one. When the trainer requests
batch k, the workers may also fill batch k + 1, each as soon as its part of batch k is full:

    trainer   next(): waits for batch k | learns, publishes v | next(): waits for batch k + 1 | learns, publishes w
    worker    part k ------------------ | part k + 1 -------------- | part k + 2 -------------------------
              weights before v           weights before v             weights v

Batch k + 1 is collected with the newest weights at the time batch k is requested. This does not depend on speed, so a
run is reproducible. The lag is one version if the trainer publishes once per batch.

Source: Liu et al., "High-Throughput Synchronous Deep RL", NeurIPS 2020, arXiv:2012.09849.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import Arrival


@dataclass
class _Batch:
    """A batch that is being filled, or is complete.

    Attributes:
        slot: the slot number, the same for all workers; negative for a restored batch.
        version: the policy version with which the batch is filled, with overlap.
    """

    slot: int
    version: int
    missing: set[int]
    parts: dict[int, Arrival] = field(default_factory=dict)

    @property
    def arrivals(self) -> tuple[Arrival, ...] | None:
        """The parts in the order of worker indices; None while a part is missing."""
        return None if self.missing or not self.parts else tuple(self.parts[worker] for worker in sorted(self.parts))


class SyncSchedule(Schedule):
    """Stacks a part of every worker, in the order of worker indices.

    Args:
        overlap: number of batches, 0 or 1, that may be filled beyond the requested one.
        num_batches: number of batches that will be delivered; none is filled beyond them. None: no limit.
    """

    stacked = True

    def __init__(self, num_workers: int, overlap: int = 0, num_batches: int | None = None):
        self.num_slots = 1 + overlap
        self.grants_name_version, self.require_latest = bool(overlap), not overlap
        self._workers = list(range(num_workers))
        self._num_left = num_batches
        self._version = -1
        # The next batch to deliver, then the one after it.
        self._batches: deque[_Batch] = deque()

    def batch_requested(self) -> Iterable[Grant]:
        grants: list[Grant] = []
        while self._workers and len(self._batches) < self.num_slots and (self._num_left != 0 or not self._batches):
            slot = int(any(batch.slot == 0 for batch in self._batches))
            self._batches.append(_Batch(slot, self._version, set(self._workers)))
            if self._num_left:
                self._num_left -= 1
            grants += [(worker, slot) for worker in self._workers]
        return grants

    @property
    def must_wait_to_publish(self) -> bool:
        # After an interrupted wait, a worker may still need the older of two versions.
        return len(self._batches) == 2 and bool(self._batches[0].missing)

    def batch_awaited(self) -> Iterable[Grant]:
        return self.batch_requested()  # if there was no worker before, or the batch lost all its workers

    def version_of(self, slot: int) -> int | None:
        if not self.grants_name_version:
            return None
        return next(batch.version for batch in self._batches if batch.slot == slot)

    def arrived(self, arrival: Arrival) -> None:
        batch = next(batch for batch in self._batches if batch.slot == arrival.slot)
        batch.parts[arrival.worker] = arrival
        batch.missing.discard(arrival.worker)

    def next_batch(self) -> tuple[Arrival, ...] | None:
        arrivals = self._batches[0].arrivals if self._batches else None
        if arrivals is not None:
            self._batches.popleft()
        return arrivals

    def undelivered(self) -> list[tuple[Arrival, ...]]:
        return [arrivals for batch in self._batches if (arrivals := batch.arrivals) is not None]

    def restore(self, arrivals: tuple[Arrival, ...]) -> None:
        parts = {arrival.worker: arrival for arrival in arrivals}
        self._batches.append(_Batch(arrivals[0].slot, arrivals[0].report.policy_version, set(), parts))
        self.skip(1)

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        return ()

    def replaced(self, worker: int) -> Iterable[Grant]:
        return [(worker, batch.slot) for batch in self._batches if worker in batch.missing]

    def dropped(self, worker: int) -> None:
        # Parts that have arrived from the worker stay in their batches.
        self._workers.remove(worker)
        for batch in list(self._batches):
            batch.missing.discard(worker)
            if not batch.missing and not batch.parts:
                self._batches.remove(batch)

    def joined(self, worker: int) -> None:
        self._workers.append(worker)

    def published(self, version: int) -> None:
        self._version = version

    def skip(self, batches: int) -> None:
        if self._num_left is not None:
            self._num_left = max(0, self._num_left - batches)


class PreemptiveSchedule(SyncSchedule):
    """Ends a batch early, when a share of its parts has arrived: the other workers deliver the frames that they have.
    `threshold` is this share, from 0 to 1; at least one part must arrive. `preempt` is called with True to end the
    batch early, and with False when it is complete. Set this before use."""

    preempt: Callable[[bool], None]

    def __init__(self, num_workers: int, threshold: float):
        super().__init__(num_workers)
        self._threshold = threshold

    def arrived(self, arrival: Arrival) -> None:
        super().arrived(arrival)
        self._preempt_if_due()

    def dropped(self, worker: int) -> None:
        super().dropped(worker)
        self._preempt_if_due()

    def _preempt_if_due(self) -> None:
        for batch in self._batches:
            num_parts, num_missing = len(batch.parts), len(batch.missing)
            # Compared as a quotient: the product of a threshold and a count may be rounded up.
            if num_missing and num_parts and num_parts / (num_parts + num_missing) >= self._threshold:
                self.preempt(True)

    def next_batch(self) -> tuple[Arrival, ...] | None:
        parts = super().next_batch()
        if parts is not None:
            self.preempt(False)
        return parts
