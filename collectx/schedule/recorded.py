"""The schedule that reproduces an async run: every batch comes from the same worker, with the same weights as in the
recorded run.

A worker may fill its next batch once the batch's weights are published, and newer weights are not published until all
batches of the current ones have arrived. So the same seeds give the same batches, as in a sync run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectx.schedule.asynchronous import AsyncSchedule
from collectx.schedule.base import Grant
from collectx.transport.base import Arrival


@dataclass(frozen=True)
class RecordedBatch:
    """A batch of the recorded run.

    Attributes:
        acted, acted_settings: its policy version and its settings version (`collectx.collector.worker_record`).
        newest, newest_settings: the newest versions at its delivery.
    """

    worker: int
    acted: int
    newest: int
    acted_settings: int = 0
    newest_settings: int = 0

    @property
    def num_needed(self) -> int:
        """Number of versions, of weights and settings, that must exist before it can begin."""
        return self.acted + self.acted_settings

    @property
    def num_at_delivery(self) -> int:
        """Number of versions, of weights and settings, that existed at its delivery."""
        return self.newest + self.newest_settings


class RecordedSchedule(AsyncSchedule):
    """Grants and delivers in the order of a record; after its end, behaves like `AsyncSchedule`. `zero_copy` says
    whether a delivered batch occupies its slot until the next one is requested."""

    require_latest = True

    def __init__(
        self,
        num_workers: int,
        num_slots: int,
        num_batches: int | None,
        record: Sequence[RecordedBatch],
        zero_copy: bool,
    ):
        super().__init__(num_workers, max(num_slots, slots_needed(record) + zero_copy), num_batches)
        self._version, self._settings = -1, 0
        # The workers of the undelivered batches, in order.
        self._order = deque(batch.worker for batch in record)
        # For each worker, the versions of its batches that are not granted yet.
        self._versions: dict[int, deque[tuple[int, int]]] = {worker: deque() for worker in range(num_workers)}
        for batch in record:
            self._versions[batch.worker].append((batch.acted, batch.acted_settings))

    @property
    def must_wait_to_publish(self) -> bool:
        return bool(self._order) and (any(self._granted.values()) or any(self._can_act(grant) for grant in self._free))

    def batch_awaited(self) -> Iterable[Grant]:
        return self._grant_free_slots() if self._order else super().batch_awaited()

    def before_publish(self) -> Iterable[Grant]:
        return self._grant_free_slots()

    def next_batch(self) -> tuple[Arrival, ...] | None:
        if not self._order:
            return super().next_batch()
        first = next((arrival for arrival in self._arrivals if arrival.worker == self._order[0]), None)
        if first is None:
            return None
        self._arrivals.remove(first)
        self._order.popleft()
        return (first,)

    def restore(self, arrivals: tuple[Arrival, ...]) -> None:
        super().restore(arrivals)
        for arrival in arrivals:
            if versions := self._versions[arrival.worker]:
                versions.popleft()

    def dropped(self, worker: int) -> None:
        super().dropped(worker)
        self._versions.pop(worker, None)
        # Batches that have arrived from the worker keep their places.
        num_arrived = sum(arrival.worker == worker for arrival in self._arrivals)
        order: deque[int] = deque()
        for other in self._order:
            if other == worker:
                num_arrived -= 1
            if other != worker or num_arrived >= 0:
                order.append(other)
        self._order = order

    def published(self, version: int) -> None:
        self._version = version

    def changed(self, version: int) -> None:
        self._settings = version

    def _can_act(self, grant: Grant) -> bool:
        """Whether the weights and settings of the worker's next batch exist."""
        versions = self._versions[grant[0]]
        return bool(versions) and versions[0][0] <= self._version and versions[0][1] <= self._settings

    def _grant_free_slots(self) -> list[Grant]:
        """Grants the free slots of workers that can begin their next batch."""
        if not self._order:
            return super()._grant_free_slots()
        grants: list[Grant] = []
        for grant in list(self._free):
            if self._can_act(grant):
                self._versions[grant[0]].popleft()
                self._free.remove(grant)
                grants.append(self._grant(grant))
        if self._num_left is not None:
            self._num_left -= len(grants)
        return grants


def slots_needed(record: Sequence[RecordedBatch]) -> int:
    """Returns the number of slots per worker that the record needs. When weights are published or a setting is made,
    some batches of a worker are full, but not delivered; this is the largest number of them."""
    most, pending = 1, Counter[int]()
    ahead = deque(sorted(range(len(record)), key=lambda index: record[index].num_needed))
    for index, batch in enumerate(record):
        while ahead and record[ahead[0]].num_needed < batch.num_at_delivery:
            filled = ahead.popleft()
            if filled >= index:
                worker = record[filled].worker
                pending[worker] += 1
                most = max(most, pending[worker])
        if batch.num_needed < batch.num_at_delivery:
            pending[batch.worker] -= 1
    return most
