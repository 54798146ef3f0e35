"""An async run done again: the schedule that delivers in the order of another run, each batch of the worker, and acted
with the weights, that it had there.

Workers go on by themselves as long as their next batch acted with weights that are there; newer weights wait until all
that acted with the present ones has come. So the same seeds give the same batches, as in a sync run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectx.schedule.base import AsyncSchedule, Grant
from collectx.transport.base import Arrival


@dataclass(frozen=True)
class RecordedBatch:
    """A batch of the other run.

    Attributes:
        worker: whose it was.
        acted: the version of the weights with which it began.
        newest: the newest when it was delivered.
    """

    worker: int
    acted: int
    newest: int


class ReplaySchedule(AsyncSchedule):
    """After the record's end it goes on as any async one.

    Args:
        record: in order of delivery.
        lent: whether a delivered batch keeps its slot until the next is asked for.
    """

    require_latest = True

    def __init__(
        self, num_workers: int, num_slots: int, num_batches: int | None, record: Sequence[RecordedBatch], lent: bool
    ):
        super().__init__(num_workers, max(num_slots, slots_needed(record) + lent), num_batches)
        self._version = -1
        self._order = deque(batch.worker for batch in record)
        # Of each worker, with which weights the batches act that it was not granted yet.
        self._ahead: dict[int, deque[int]] = {worker: deque() for worker in range(num_workers)}
        for batch in record:
            self._ahead[batch.worker].append(batch.acted)

    @property
    def must_wait_to_publish(self) -> bool:
        return bool(self._order) and (any(self._out.values()) or any(map(self._is_due, self._ahead)))

    def begin(self) -> Iterable[Grant]:
        return self._affordable() if self._order else super().begin()

    def take(self) -> tuple[Arrival, ...] | None:
        if not self._order:
            return super().take()
        first = next((arrival for arrival in self._full if arrival.worker == self._order[0]), None)
        if first is None:
            return None
        self._full.remove(first)
        self._order.popleft()
        return (first,)

    def dropped(self, worker: int) -> None:
        super().dropped(worker)
        self._ahead.pop(worker, None)
        delivered = sum(arrival.worker == worker for arrival in self._full)
        kept: deque[int] = deque()
        for other in self._order:
            if other == worker:
                delivered -= 1
            if other != worker or delivered >= 0:
                kept.append(other)
        self._order = kept

    def published(self, version: int) -> None:
        self._version = version

    def _is_due(self, worker: int) -> bool:
        ahead = self._ahead[worker]
        return bool(ahead) and ahead[0] <= self._version

    def _affordable(self) -> list[Grant]:
        if not self._order:
            return super()._affordable()
        grants: list[Grant] = []
        for grant in list(self._free):
            if self._is_due(grant[0]):
                self._ahead[grant[0]].popleft()
                self._free.remove(grant)
                self._out[grant[0]].append(grant[1])
                grants.append(grant)
        if self._left is not None:
            self._left -= len(grants)
        return grants


def slots_needed(record: Sequence[RecordedBatch]) -> int:
    """How many batches of one worker act with weights that are there, and are not delivered, at most."""
    most, out = 1, Counter[int]()
    ahead = deque(sorted(record, key=lambda batch: batch.acted))
    for batch in record:
        while ahead and ahead[0].acted <= batch.newest:
            worker = ahead.popleft().worker
            out[worker] += 1
            most = max(most, out[worker])
        out[batch.worker] -= 1
    return most
