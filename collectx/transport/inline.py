"""Transport within one process: `receive` runs the worker until it has filled a slot. For `collector=single`, and for
debugging any other collector with `launcher=inline`.

A worker is a generator that does one batch each time it is advanced (see `collectx/collector/worker.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from collectx.errors import WorkerDied
from collectx.transport.base import Arrival, SlabSpec, Tally
from collectx.transport.slab import Slab

_ENDED = object()


class InlineTransport:
    """Both ends in the trainer's process. Waits for nothing, so nothing can time out."""

    def __init__(self, spec: SlabSpec):
        self.slab = Slab(spec, shared=False)
        self.region_layout = self.slab.region_layout
        self._granted: deque[int] = deque()
        self._arrivals: deque[Arrival] = deque()
        self._links = [InlineLink(self.slab, worker, self._arrivals) for worker in range(spec.num_workers)]
        self._workers: list[Iterator[None]] = []

    def link(self, worker: int) -> InlineLink:
        """The worker's end."""
        return self._links[worker]

    def attach(self, workers: Sequence[Iterator[None]]) -> None:
        """Takes the workers' generators, in order of their index."""
        self._workers = list(workers)

    def grant(self, worker: int, slot: int) -> None:
        self._links[worker].granted.append(slot)
        self._granted.append(worker)

    def receive(self) -> Arrival:
        worker = self._granted[0]
        # A worker that raised is at its end: advanced again, it must not look like the end of the collection.
        if next(self._workers[worker], _ENDED) is _ENDED:
            raise WorkerDied(f"worker {worker} ended before, by an error that was raised then")
        self._granted.popleft()
        return self._arrivals.popleft()

    def region(self, worker: int, slot: int) -> torch.Tensor:
        return self.slab.region(worker, slot)

    def publish(self, write: Callable[[torch.Tensor], None]) -> int:
        return self.slab.publish(write)

    def close(self) -> None:
        while self._workers:
            self._workers.pop().close()  # type: ignore[attr-defined]


class InlineLink:
    """The worker's end."""

    def __init__(self, slab: Slab, worker: int, arrivals: deque[Arrival]):
        self.worker = worker
        self.granted: deque[int] = deque()
        self.slots = [slab.slot(worker, index) for index in range(slab.spec.num_slots)]
        self.stop = slab.stop
        self._slab = slab
        self._arrivals = arrivals

    def acquire(self) -> int | None:
        return self.granted.popleft()

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        return self._slab.refresh(read, version)

    def send(self, slot: int, tally: Tally) -> None:
        self._arrivals.append(Arrival(self.worker, slot, tally))

    def fail(self, error: BaseException) -> None:
        raise error
