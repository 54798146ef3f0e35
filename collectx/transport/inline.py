"""Transport within one process: `receive` runs the worker until it has filled a slot. For `collector=single`, and for
debugging any other collector with `launcher=inline`.

A worker is a generator that fills one slot each time it is advanced (`collectx/worker/loop.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from collectx.errors import WorkerDied
from collectx.transport.base import Arrival, Ask, BatchReport, BatchSpec, Departure, Fill, Reply, Reset
from collectx.transport.slab import Slab, SlabLink, SlabTransport

_ENDED = object()


class InlineTransport(SlabTransport):
    """The trainer's end. No method blocks on another process, so nothing can time out."""

    def __init__(self, spec: BatchSpec):
        super().__init__(spec, shared=False)
        self._granted: deque[int] = deque()
        self._arrivals: deque[Arrival] = deque()
        self._answers: deque[Reply | Departure] = deque()
        self._links: dict[int, InlineLink] = {}
        self._workers: dict[int, Iterator[None]] = {}

    def link(self, worker: int) -> InlineLink:
        self._links[worker] = InlineLink(self.slab, worker, self._arrivals, self._answers)
        return self._links[worker]

    def attach(self, worker: int, handle: Iterator[None]) -> None:
        self._workers[worker] = handle

    def grant(self, worker: int, slot: int, reset: Reset | None = None) -> None:
        self._links[worker].granted.append(Fill(slot, reset))
        self._granted.append(worker)

    def send_request(self, worker: int, request: Ask) -> None:
        self._links[worker].request = request
        try:
            self._advance(worker)
        except Exception as error:
            self._answers.append(Departure(worker, error))

    def _advance(self, worker: int) -> None:
        if next(self._workers[worker], _ENDED) is _ENDED:
            raise WorkerDied(f"worker {worker} has already ended with an error")
        if (error := self._links[worker].error) is not None:
            raise error

    def receive(self) -> Arrival | Departure | Reply:
        if self._answers:
            return self._answers.popleft()
        if not self._granted:
            raise RuntimeError("no worker was granted a slot, so there is nothing to receive")
        worker = self._granted[0]
        try:
            self._advance(worker)
        except Exception as error:
            self._granted = deque(other for other in self._granted if other != worker)
            return Departure(worker, error)
        self._granted.popleft()
        return self._arrivals.popleft()

    def close(self) -> None:
        while self._workers:
            self._workers.popitem()[1].close()  # type: ignore[attr-defined]


class InlineLink(SlabLink):
    """The worker's end."""

    def __init__(self, slab: Slab, worker: int, arrivals: deque[Arrival], answers: deque[Reply | Departure]):
        super().__init__(slab, worker)
        self.granted: deque[Fill] = deque()
        # The request that comes before the granted slots.
        self.request: Ask | None = None
        self._arrivals = arrivals
        self._answers = answers
        self.error: BaseException | None = None

    def acquire(self) -> Fill | Ask | None:
        request, self.request = self.request, None
        return self.granted.popleft() if request is None else request

    def send(self, slot: int, report: BatchReport) -> None:
        self._arrivals.append(Arrival(self.worker, slot, report))

    def reply(self, value: Any, error: Exception | None = None) -> None:
        self._answers.append(Reply(self.worker, value, error))

    def fail(self, error: BaseException) -> None:
        """The transport raises it."""
        self.error = error
