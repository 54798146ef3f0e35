"""The interface of schedules, which decide which slots workers may fill, and which filled slots make a batch. A
schedule knows no processes, clocks or memory.

A schedule returns grants `(worker, slot)`, which the collector passes to the transport.

    sync:   next() -> grant all -> wait for all -> one stacked batch      workers wait while the trainer learns
    sync with overlap: the next batch is granted as well (`collectx/schedule/sync.py`)
    async:  slots are always granted; each arrival is a batch             workers wait only for a free slot
    replay: async in the order of another run (`collectx/schedule/recorded.py`)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from collectx.transport.base import Arrival

Grant: TypeAlias = tuple[int, int]


class Schedule:
    """Decides about slots. The collector calls its methods when something has happened.

    Attributes:
        stacked: whether a batch has one part from each worker that is there when the batch begins; False: a batch is
            a single part.
        require_latest: whether a slot must be filled with the newest version at its grant, or a newer one.
        grants_name_version: whether `version_of` names the exact version for each slot.
        must_wait_to_publish: whether slots must still be filled with the current weights before new ones are published.
    """

    stacked: bool
    require_latest: bool
    num_slots: int
    grants_name_version = False

    @property
    def must_wait_to_publish(self) -> bool:
        return False

    def batch_requested(self) -> Iterable[Grant]:
        """A batch was requested; returns slots that may be filled, whether or not the batch is complete."""
        return ()

    def batch_awaited(self) -> Iterable[Grant]:
        """The requested batch is incomplete; returns slots that may be filled."""
        raise NotImplementedError

    def version_of(self, slot: int) -> int | None:
        """Returns the version with which a granted slot must be filled. None: the newest at its grant, or a newer
        one."""
        return None

    def before_publish(self) -> Iterable[Grant]:
        """While `must_wait_to_publish`: returns slots to fill with the current weights."""
        return ()

    def arrived(self, arrival: Arrival) -> None:
        """A slot is full."""
        raise NotImplementedError

    def next_batch(self) -> tuple[Arrival, ...] | None:
        """Returns and removes the parts of the next batch; None while it is incomplete."""
        raise NotImplementedError

    def undelivered(self) -> list[tuple[Arrival, ...]]:
        """Returns the parts of complete batches that `next_batch` has not returned."""
        raise NotImplementedError

    def restore(self, arrivals: tuple[Arrival, ...]) -> None:
        """Adds a complete batch from the state of an earlier process of the run; its slot numbers are negative."""
        raise NotImplementedError

    def released(self, arrivals: tuple[Arrival, ...]) -> Iterable[Grant]:
        """The memory of a batch is no longer in use; returns slots that may be filled."""
        raise NotImplementedError

    def replaced(self, worker: int) -> Iterable[Grant]:
        """A new process of this worker was started; returns slots that it may fill."""
        raise NotImplementedError

    def dropped(self, worker: int) -> None:
        """The worker is gone and will not be replaced."""
        raise NotImplementedError

    def joined(self, worker: int) -> None:
        """A new or a dropped worker takes part from now on. The next `batch_awaited` or `released` grants its slots."""
        raise NotImplementedError

    def published(self, version: int) -> None:
        """`version` is the newest policy version."""

    def changed(self, version: int) -> None:
        """`version` is the newest settings version."""

    def skip(self, batches: int) -> None:
        """Reduces the number of batches to deliver."""
