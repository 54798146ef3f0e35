"""The async schedules: every filled slot is a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from collectx.config.problem import opt
from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import Arrival


class AsyncSchedule(Schedule):
    """Delivers slots in the order in which they are filled. Grants no more slots than batches are still to deliver,
    with one exception: if only workers that have never delivered owe the last batches, others may fill them, because
    the former may still wait in a cluster's queue.

    Args:
        num_slots: slots of each worker; it fills one of them at a time.
        num_batches: number of batches that will be delivered; None: no limit.
        wait_for_all: whether the end of a run waits for workers that have never delivered, too.
    """

    stacked = require_latest = False

    def __init__(self, num_workers: int, num_slots: int, num_batches: int | None, wait_for_all: bool = False):
        self.num_slots = num_slots
        self._wait_for_all = wait_for_all
        # Number of slots that may still be granted; None: no limit.
        self._num_left = num_batches
        # Slot 0 of every worker comes first, so that few batches are spread over all workers.
        self._free: deque[Grant] = deque((worker, slot) for slot in range(num_slots) for worker in range(num_workers))
        self._granted: dict[int, list[int]] = {worker: [] for worker in range(num_workers)}
        # Workers that have filled a slot; others may still wait in a cluster's queue.
        self._active: set[int] = set()
        self._arrivals: deque[Arrival] = deque()
        # Full slots whose memory is still in use. The worker may have been dropped, and may have joined again.
        self._full: set[Grant] = set()
        # Free slots that are not granted until a restored batch is released, by the slot number of that batch.
        self._withheld: dict[int, Grant] = {}

    def batch_awaited(self) -> Iterable[Grant]:
        return self._grant_free_slots() or self._grant_beyond_budget()

    def arrived(self, arrival: Arrival) -> None:
        self._granted[arrival.worker].remove(arrival.slot)
        self._active.add(arrival.worker)
        self._arrivals.append(arrival)
        self._full.add((arrival.worker, arrival.slot))

    def next_batch(self) -> tuple[Arrival, ...] | None:
        return (self._arrivals.popleft(),) if self._arrivals else None

    def undelivered(self) -> list[tuple[Arrival, ...]]:
        return [(arrival,) for arrival in self._arrivals]

    def restore(self, arrivals: tuple[Arrival, ...]) -> None:
        self._arrivals.extend(arrivals)
        self.skip(1)
        for arrival in arrivals:
            self._withhold_slot(arrival)

    def _withhold_slot(self, restored: Arrival) -> None:
        """Withholds a free slot of a restored batch's worker until the batch is released."""
        grant = next((grant for grant in self._free if grant[0] == restored.worker), None)
        if grant is not None:
            self._free.remove(grant)
            self._withheld[restored.slot] = grant

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        for arrival in arrivals:
            self._full.discard((arrival.worker, arrival.slot))
            worker, slot = self._withheld.pop(arrival.slot, (arrival.worker, arrival.slot))
            if slot >= 0 and worker in self._granted:
                self._free.append((worker, slot))
        return self._grant_free_slots()

    def replaced(self, worker: int) -> Iterable[Grant]:
        self._active.discard(worker)
        return [(worker, slot) for slot in self._granted[worker]]

    def dropped(self, worker: int) -> None:
        lost = self._granted.pop(worker)
        self._active.discard(worker)
        if self._num_left is not None:
            self._num_left += len(lost)
        self._free = deque(grant for grant in self._free if grant[0] != worker)
        self._withheld = {number: grant for number, grant in self._withheld.items() if grant[0] != worker}

    def skip(self, batches: int) -> None:
        if self._num_left is not None:
            self._num_left -= batches

    def joined(self, worker: int) -> None:
        self._granted[worker] = []
        self._free.extend((worker, slot) for slot in range(self.num_slots) if (worker, slot) not in self._full)
        for arrival in self._arrivals:
            if arrival.worker == worker and arrival.slot < 0:
                self._withhold_slot(arrival)

    def _grant_free_slots(self) -> list[Grant]:
        grants: list[Grant] = []
        while self._free and (self._num_left is None or self._num_left > 0) and self._may_grant():
            grants.append(self._grant(self._free.popleft()))
            if self._num_left is not None:
                self._num_left -= 1
        return grants

    def _grant_beyond_budget(self) -> list[Grant]:
        """Grants one more slot if all granted slots belong to workers that have never filled one."""
        if self._wait_for_all or not self._may_grant() or any(self._granted[worker] for worker in self._active):
            return []
        grant = next((grant for grant in self._free if grant[0] in self._active), None)
        if grant is None:
            return []
        self._free.remove(grant)
        return [self._grant(grant)]

    def _may_grant(self) -> bool:
        return True

    def _grant(self, grant: Grant) -> Grant:
        self._granted[grant[0]].append(grant[1])
        return grant


class BoundedLagSchedule(AsyncSchedule):
    """The schedule of `collector.max_policy_lag`: grants a slot only if no batch can then exceed a lag of `max_lag`, so
    workers wait instead. `next_batch` raises `RuntimeError` if a batch exceeds it nevertheless, because the trainer
    published twice between two batches. For the other arguments see `AsyncSchedule`.

    The lag of a batch is the number of versions that were published after its own and before its delivery. A slot is
    filled with the newest version at its grant, or a newer one. The trainer takes at least one batch between two
    publications, so the lag of a slot at its delivery is at most

        versions published since its grant
        + other granted or full slots: each may be delivered before it and be followed by a publication
        + 1, if a batch was delivered and its publication may still come

    Deliveries and publications do not increase this sum; a grant increases it by one.
    """

    require_latest = True

    def __init__(self, num_workers: int, num_slots: int, num_batches: int | None, wait_for_all: bool, max_lag: int):
        super().__init__(num_workers, num_slots, num_batches, wait_for_all)
        self._max_lag = max_lag
        self._version = 0
        # The newest version at the grant of each granted or full slot.
        self._versions: dict[Grant, int] = {}
        # Whether a batch was delivered after the newest version was published.
        self._may_publish = False

    def batch_awaited(self) -> Iterable[Grant]:
        self._may_publish = False  # the trainer waits for a batch
        return super().batch_awaited()

    def next_batch(self) -> tuple[Arrival, ...] | None:
        acted = self._arrivals[0].report.policy_version if self._arrivals else self._version
        if self._version - acted > self._max_lag:
            limit = opt("collector.max_policy_lag")
            raise RuntimeError(
                f"the next batch was collected with weight version {acted}, but version {self._version} is already "
                f"published, so its lag exceeds {limit}={self._max_lag}. Publish at most once per batch, or raise "
                f"{limit}."
            )
        parts = super().next_batch()
        for part in parts or ():
            del self._versions[part.worker, part.slot]
            self._may_publish = True
        return parts

    def restore(self, arrivals: tuple[Arrival, ...]) -> None:
        super().restore(arrivals)
        self._versions |= {(part.worker, part.slot): part.report.policy_version for part in arrivals}

    def replaced(self, worker: int) -> Iterable[Grant]:
        self._versions.update({(worker, slot): self._version for slot in self._granted[worker]})
        return super().replaced(worker)

    def dropped(self, worker: int) -> None:
        for slot in self._granted[worker]:
            del self._versions[worker, slot]
        super().dropped(worker)

    def published(self, version: int) -> None:
        self._version, self._may_publish = version, False

    def _may_grant(self) -> bool:
        oldest = min(self._versions.values(), default=self._version)
        return self._version - oldest + len(self._versions) + self._may_publish <= self._max_lag

    def _grant(self, grant: Grant) -> Grant:
        self._versions[grant] = self._version
        return super()._grant(grant)
