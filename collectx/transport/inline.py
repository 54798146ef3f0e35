"""The transport within one process, whose `receive` runs a worker until it has filled a slot. For `collector=single`,
and for debugging other collectors with `launcher=inline`.

A worker is a generator that fills one slot each time it is advanced (`collectx/worker/slot_loop.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from collectx.errors import WorkerDied
from collectx.transport.base import NO_WORK, Arrival, Departure, Fill, Reply, Request, Reset, SlotReport, SlotSpec
from collectx.transport.slab import Slab, SlabLink, SlabTransport

_ENDED = object()


class InlineTransport(SlabTransport):
    """The trainer's end. Steps the workers in `receive`, so nothing can time out. `device` is the device of the slots;
    None: the CPU."""

    def __init__(self, spec: SlotSpec, device: torch.device | None = None):
        super().__init__(spec, shared=False, device=device)
        # The worker of each pending grant and request, in order.
        self._pending: deque[int] = deque()
        self._events: deque[Arrival | Reply] = deque()
        self._links: dict[int, InlineLink] = {}
        self._workers: dict[int, Iterator[None]] = {}

    @property
    def num_stepping(self) -> None:
        return None

    def link(self, worker: int) -> InlineLink:
        self._links[worker] = InlineLink(self.slab, worker, self._events)
        return self._links[worker]

    def attach(self, worker: int, handle: Iterator[None]) -> None:
        self._workers[worker] = handle

    def grant(self, worker: int, slot: int, reset: Reset | None = None, version: int | None = None) -> None:
        pointer = 0 if version is None else self.slab.pointer_to(version)
        self._send(worker, (Fill(self.slab.region_of(worker, slot), reset), pointer))

    def send_request(self, worker: int, request: Request) -> None:
        self._send(worker, (request, 0))

    def _send(self, worker: int, message: tuple[Fill | Request, int]) -> None:
        self._links[worker].messages.append(message)
        self._pending.append(worker)

    def receive(self) -> Arrival | Departure | Reply:
        if not self._pending:
            raise RuntimeError(NO_WORK)
        worker = self._pending[0]
        try:
            if next(self._workers[worker], _ENDED) is _ENDED:
                raise WorkerDied(
                    f"worker {worker} has ended, because it raised an error before, or was interrupted while it was "
                    "creating its env. Create a new collector."
                )
            if (failure := self._links[worker].take_error()) is not None:
                raise failure
        except Exception as error:
            self._pending = deque(other for other in self._pending if other != worker)
            return Departure(worker, error)
        self._pending.popleft()
        event = self._events.popleft()
        return event if isinstance(event, Reply) else self._arrival(worker, event.slot, event.report)

    def close(self) -> None:
        # Ends the step loop of a worker that another thread advances; the worker then closes its envs in that thread.
        self.interrupt()
        while self._workers:
            worker: Any = self._workers.popitem()[1]
            if not worker.gi_running:
                worker.close()
        self.slab.leases.close()


class InlineLink(SlabLink):
    """The worker's end."""

    def __init__(self, slab: Slab, worker: int, events: deque[Arrival | Reply]):
        super().__init__(slab, worker)
        # Grants, with the pointers to their weights, and requests.
        self.messages: deque[tuple[Fill | Request, int]] = deque()
        self._events = events
        self._error: BaseException | None = None

    def acquire(self) -> Fill | Request | None:
        message, pointer = self.messages.popleft()
        if isinstance(message, Fill):
            self.pointer = pointer
        return message

    def send(self, slot: int, report: SlotReport) -> None:
        self._events.append(Arrival(self.worker, slot, report))

    def reply(self, value: Any, error: Exception | None = None) -> None:
        self._events.append(Reply(self.worker, value, error))

    def fail(self, error: BaseException) -> None:
        self._error = error

    def put_back(self, message: Fill | Request, interruption: KeyboardInterrupt) -> None:
        """Makes `acquire` return the message again after a Ctrl-C. The step may have been interrupted, so a slot is
        then filled from new episodes."""
        if isinstance(message, Fill) and message.reset is None:
            message = Fill(message.slot, Reset())
        self.messages.appendleft((message, self.pointer))
        self._error = interruption

    def take_error(self) -> BaseException | None:
        """Returns and removes the error that the transport must raise; None without one."""
        error, self._error = self._error, None
        return error
