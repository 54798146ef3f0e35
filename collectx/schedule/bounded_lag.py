"""The async schedule of `collector.max_policy_lag`: workers wait rather than fill slots that would be too old.

The lag of a batch is the number of versions that were published between the one that acted in it and its delivery. A
slot is filled with the version that is the newest at its grant, or with a newer one. Between two publications a trainer
takes at least one batch, so a slot's lag at its delivery is at most

    versions published since its grant
    + other slots that are granted or full, as each may be delivered before it and be followed by a publication
    + 1, if a batch was delivered and its publication may still come

As batches are delivered and weights are published, this sum does not grow; a grant increases it by one.
"""

from __future__ import annotations

from collections.abc import Iterable

from collectx.schedule.asynchronous import AsyncSchedule
from collectx.schedule.base import Grant
from collectx.transport.base import Arrival


class BoundedLagSchedule(AsyncSchedule):
    """Grants a slot only if no batch can then have a lag above `max_lag`; for the other arguments see `AsyncSchedule`.
    `next_batch` raises `RuntimeError` if one has, as the trainer has published twice between two batches."""

    require_latest = True

    def __init__(self, num_workers: int, num_slots: int, num_batches: int | None, wait_for_all: bool, max_lag: int):
        super().__init__(num_workers, num_slots, num_batches, wait_for_all)
        self._max_lag = max_lag
        self._version = 0
        # The newest version at its grant, of each slot that is granted or full.
        self._versions: dict[Grant, int] = {}
        # Whether a batch was delivered after the newest version was published.
        self._may_publish = False

    def begin(self) -> Iterable[Grant]:
        self._may_publish = False  # the trainer waits for a batch
        return super().begin()

    def next_batch(self) -> tuple[Arrival, ...] | None:
        acted = self._arrivals[0].report.policy_version if self._arrivals else self._version
        if self._version - acted > self._max_lag:
            raise RuntimeError(
                f"collector.max_policy_lag={self._max_lag}: version {acted} acted in the next batch, and version "
                f"{self._version} is published: publish at most once per batch, or raise max_policy_lag"
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
