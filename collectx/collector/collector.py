"""A collector: iterate to get batches, publish to hand new weights to the workers. A schedule over a transport.

Runs in the trainer's process. Must not know how bytes travel, where workers are, or what is learnt from a batch.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.util import Finalize
from time import perf_counter
from types import TracebackType
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from collectx.batch import Layout, to_tensordict
from collectx.collector.batch_info import Delivery, DeliverySpec, Part, Timings
from collectx.collector.failure_policy import FailurePolicy
from collectx.errors import text_of
from collectx.policy.weights import FlatWeights
from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import (
    NO_RESET,
    RESET,
    Arrival,
    Departure,
    Joined,
    Reply,
    RequestTransport,
    Transport,
    Write,
)


class _OneThread:
    """A block that only one thread may be in; another one's attempt is an error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "this collector is in use by another thread, which waits for a batch or an answer, or by the hook or "
                "env that calls it: take its batches in one thread, and pass them to others through a queue.Queue"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Collector:
    """Yields TensorDicts of `frames_per_batch` frames (`collectx/batch.py`) until `total_frames` are delivered; of
    fewer frames where a sync worker was dropped. Where a part has fewer frames than there is room for (`Part.frames`),
    what is in its last steps is of no meaning.

    Attributes:
        delivery: what is known of the batch delivered last.
        policy_version: newest published version.
        num_frames: frames delivered so far.
        frames_by_worker: those that came from each worker.
    """

    delivery: Delivery

    def __init__(
        self,
        transport: Transport,
        schedule: Schedule,
        spec: DeliverySpec,
        num_workers: int,
        failure_policy: FailurePolicy,
        events: Callable[..., None],
    ):
        self._transport = transport
        self._one_thread = _OneThread()
        self._schedule = schedule
        self._spec = spec
        self._workers = set(range(num_workers))
        self._next_worker = num_workers
        self._failure_policy = failure_policy
        self._events = events
        self._num_delivered = 0
        self._is_preempting = self._is_interrupted = False
        self.num_frames = 0
        self.frames_by_worker: Counter[int] = Counter()
        self._failure: Exception | None = None
        self._reset_requests: dict[int, int] = {}
        self._layouts: dict[int, Layout] = {}
        # The parts of the next batch, where `next` was interrupted before it was delivered.
        self._next_parts: tuple[Arrival, ...] | None = None
        # Parts of what was delivered, whose slots are not free yet.
        self._borrowed: tuple[Arrival, ...] = ()
        # What came while an answer was waited for.
        self._deferred: deque[Arrival | Departure | Joined] = deque()
        # How many answers of each worker are still to come.
        self._unanswered: Counter[int] = Counter()
        # How many slots of each worker are granted and not back.
        self._granted: Counter[int] = Counter()
        self.policy_version = -1
        self.total_frames = spec.total_frames
        # Also runs at exit, before multiprocessing waits for its processes there, so that a forgotten collector neither
        # leaves one behind nor waits for ever. Not in a process that was forked off this one.
        self._finalizer = Finalize(self, transport.close, exitpriority=0)

    def __iter__(self) -> Iterator[TensorDict]:
        return self

    def __next__(self) -> TensorDict:
        """Blocks until a batch is there.

        Raises:
            StopIteration: all frames were delivered.
            RuntimeError: the collector is closed, or in use by another thread.
            WorkerTimeout, WorkerDied, Exception: a worker is gone (see `Departure`), and by
                `collector.on_worker_failure` that ends the run.
        """
        with self._one_thread:
            return self._next()

    def _next(self) -> TensorDict:
        spec = self._spec
        parts, waited_s = self._wait_for_parts()
        memory = self._transport.gather(parts, copy=not spec.zero_copy and spec.storing_device is None)
        if spec.storing_device is not None and not spec.zero_copy:
            memory = memory.to(spec.storing_device, copy=True)
        self._record_delivery(parts, waited_s)
        if not spec.zero_copy:
            self._release_slots()
        batch_size = spec.batch_size(len(parts))
        tensors = self._layout(len(parts)).tensors(memory, batch_size)
        return to_tensordict(tensors, batch_size, spec.storing_device)

    def advance(self) -> None:
        """As `next`, but does not look at the batch's bytes, which its workers have put elsewhere."""
        with self._one_thread:
            parts, waited_s = self._wait_for_parts()
            self._record_delivery(parts, waited_s)
            self._release_slots()

    def wait_until_idle(self) -> None:
        """Waits, after `advance`, until the workers have filled what they were granted, and rest. What comes counts as
        delivered. The next `advance` lets them go on.

        Raises:
            Exception: as `next`.
        """
        with self._one_thread:
            while (parts := self._complete_parts()) or any(self._granted.values()):
                if parts:
                    self._record_delivery(parts, 0.0)
                else:
                    self._handle_event()

    def _wait_for_parts(self) -> tuple[tuple[Arrival, ...], float]:
        """Blocks until the parts of a batch are there; they, and for how long."""
        if 0 <= self._spec.total_frames <= self.num_frames:
            raise StopIteration
        if not self._finalizer.still_active():
            raise RuntimeError("this collector is closed")
        if self._failure is not None:
            raise self._failure
        began = perf_counter()
        self._release_slots()
        while (parts := self._complete_parts()) is None:
            self._grant(self._schedule.begin())
            self._handle_event()
        self._preempt(False)
        return parts, perf_counter() - began

    def _complete_parts(self) -> tuple[Arrival, ...] | None:
        """The parts of the next batch, if they are there: the same ones until they are counted, also where that was
        interrupted."""
        if self._next_parts is None:
            self._next_parts = self._schedule.take()
        return self._next_parts

    def _record_delivery(self, parts: tuple[Arrival, ...], waited_s: float) -> None:
        """Notes that a batch is delivered; its slots are not free before `_release_slots`."""
        self._next_parts, self._borrowed = None, self._borrowed + parts
        self.delivery = self._describe(parts, waited_s)
        self._num_delivered += 1
        self.num_frames += self.delivery.frames
        for part in self.delivery.parts:
            self.frames_by_worker[part.worker] += part.frames

    def _handle_event(self) -> None:
        """Blocks until one thing has happened."""
        event = self._deferred.popleft() if self._deferred else self._transport.receive()
        if isinstance(event, Reply):
            self._answered(event.worker)  # to a question whose asker was interrupted
        elif isinstance(event, Arrival):
            self._granted[event.worker] -= 1
            self._schedule.arrived(event)
            if self._schedule.should_preempt:
                self._preempt(True)
        elif isinstance(event, Joined):
            self._events("worker_joined", worker=event.worker, **event.info)
        elif isinstance(event, Departure):
            self._handle_departure(event.worker, event.error)

    def _preempt(self, wanted: bool) -> None:
        if wanted != self._is_preempting:
            self._is_preempting = wanted
            self._transport.preempt(wanted)

    def _handle_departure(self, worker: int, error: Exception) -> None:
        self._events("worker_failed", worker=worker, type=type(error).__name__, message=text_of(error))
        self._granted.pop(worker, None)
        self._unanswered.pop(worker, None)
        mode = "raise" if self._is_interrupted else self._failure_policy.mode
        if mode == "restart":
            try:
                life = self._failure_policy.restart(worker, error)
            except Exception as refusal:
                self._failure = refusal
                raise
            self._events("worker_restarted", worker=worker, life=life)
            self._grant(self._schedule.replaced(worker))
            return
        self._workers.remove(worker)
        if mode == "raise" or not self._workers:
            self._failure = error
            raise error
        self._events("worker_dropped", worker=worker, num_workers=len(self._workers))
        self._schedule.dropped(worker)

    def _grant(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self._granted[grant[0]] += 1
            self._transport.grant(*grant, self._reset_requests.pop(grant[0], NO_RESET))

    def _release_slots(self) -> None:
        parts, self._borrowed = self._borrowed, ()
        if parts:
            self._grant(self._schedule.released(parts))

    def _layout(self, num_parts: int) -> Layout:
        if num_parts not in self._layouts:
            spec = self._spec
            self._layouts[num_parts] = Layout(spec.leaves, spec.rows * num_parts, spec.steps)
        return self._layouts[num_parts]

    def _describe(self, arrivals: tuple[Arrival, ...], waited_s: float) -> Delivery:
        spec = self._spec
        parts = tuple(
            Part(
                arrival.worker,
                arrival.report.policy_version,
                spec.rows * (spec.steps if arrival.report.steps is None else arrival.report.steps),
                Timings(arrival.report.env_s, arrival.report.policy_s, arrival.report.wait_s, arrival.report.send_s),
                arrival.report.returns,
                arrival.report.lengths,
            )
            for arrival in arrivals
        )
        frames = sum(part.frames for part in parts)
        return Delivery(self._num_delivered, frames, parts, self.policy_version, waited_s)

    @property
    def steps(self) -> list[int]:
        """How many steps of each part of the last batch are filled."""
        return [part.frames // self._spec.rows for part in self.delivery.parts]

    def publish(self, policy: nn.Module | None) -> int:
        """Makes the policy's present weights the newest; returns their version (0 the first time). They are copied
        before this returns. A worker takes them before its next batch; an async one over a network does not wait for
        them, and takes them before its first batch after they have arrived.

        Blocks only where another run is done again, until all is there that acts with the weights before; raises what
        `next` raises then."""
        self._wait_to_publish()
        return self._published(self._transport.publish(FlatWeights(policy).write))

    def publish_to(self, writes: Mapping[int, Write]) -> int:
        """As `publish`, for some workers, each with individual weights; see `Transport.publish_to`."""
        self._wait_to_publish()
        return self._published(self._transport.publish_to(writes))

    def _wait_to_publish(self) -> None:
        while self._schedule.must_wait_to_publish:
            self._grant(self._schedule.begin())
            self._handle_event()

    def _published(self, version: int) -> int:
        self.policy_version = version
        self._schedule.published(version)
        return version

    @property
    def workers(self) -> list[int]:
        """Indices of those that are not dropped."""
        return sorted(self._workers)

    @property
    def num_batches(self) -> int:
        """Batches delivered so far."""
        return self._num_delivered

    @property
    def can_ask(self) -> bool:
        """Whether `ask` has anybody to ask."""
        return isinstance(self._transport, RequestTransport)

    def zeros(self) -> TensorDict:
        """A batch of all workers, of zeros."""
        num_parts = len(self._workers) if self._schedule.joined else 1
        layout, size = self._layout(num_parts), self._spec.batch_size(num_parts)
        tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8), size)
        return to_tensordict(tensors, size, self._spec.storing_device)

    def count_from(self, num_frames: int, num_batches: int) -> None:
        """Counts on from another collector's end: `total_frames` are those of both."""
        self._schedule.skip(num_batches - self._num_delivered)
        self.num_frames, self._num_delivered = num_frames, num_batches

    def ask(self, name: str, *arguments: Any, per_worker: Mapping[int, tuple] | None = None) -> dict[int, Any]:
        """Returns the answers by worker; `name` is a method of `collectx.worker.requests.RequestHandler`. Blocks until
        the workers have filled the slots that were granted before.

        Args:
            per_worker: for each worker, its arguments; those that are not in it are not asked.

        Raises:
            NotImplementedError: the workers are on other hosts, or as good as.
            Exception: a worker is gone, as in `next`, or answering has raised it.
        """
        if not isinstance(self._transport, RequestTransport):
            raise NotImplementedError(f"{name}: only workers in processes of this machine can be asked")
        if not self._finalizer.still_active():
            raise RuntimeError("this collector is closed")
        for kept in self._deferred:
            if isinstance(kept, Departure):
                raise kept.error
        with self._one_thread:
            return self._ask(name, arguments, per_worker)

    def _ask(self, name: str, arguments: tuple, per_worker: Mapping[int, tuple] | None) -> dict[int, Any]:
        assert isinstance(self._transport, RequestTransport)
        asked = self._workers & set(self._workers if per_worker is None else per_worker)
        for worker in asked:
            self._transport.send_request(worker, (name, arguments if per_worker is None else per_worker[worker]))
            self._unanswered[worker] += 1
        answers: dict[int, Any] = {}
        errors: list[Exception] = []
        while asked:
            event = self._transport.receive()
            if not isinstance(event, Reply):
                self._deferred.append(event)
            elif self._answered(event.worker):
                continue  # to an earlier question, whose asker was interrupted
            if isinstance(event, Reply | Departure):
                asked.discard(event.worker)
                if event.error is not None:
                    errors.append(event.error)
                else:
                    answers[event.worker] = event.value
        if errors:
            raise errors[0]
        return answers

    def _answered(self, worker: int) -> bool:
        """Notes an answer; whether there are more to come from this worker."""
        self._unanswered[worker] = max(0, self._unanswered[worker] - 1)
        return self._unanswered[worker] > 0

    def request_reset(self, order: int, workers: Iterable[int] | None = None) -> None:
        """Has every worker, or some, do what `order` says (`collectx.transport.base`) before the next slot that it is
        granted; slots that are granted already come before, `collector.num_slots` of each async worker at most. Does
        not wait. A worker that is started again before it has heard of it does without: its envs are new."""
        for worker in self._workers if workers is None else workers:
            # Who is seeded begins anew.
            if order != RESET or self._reset_requests.get(worker, NO_RESET) == NO_RESET:
                self._reset_requests[worker] = order

    def add(self) -> None:
        """Starts one more worker, of the next index; a sync batch grows by its part. Does not wait for it. Not over
        inline transport and shared memory, whose slots are allocated once."""
        worker = self._next_worker
        self._failure_policy.begin(worker)
        self._next_worker += 1
        self._workers.add(worker)
        self._events("worker_added", worker=worker, num_workers=len(self._workers))
        self._grant(self._schedule.added(worker))

    def handles(self) -> dict[int, Any]:
        """The launcher's handles of the present workers, by worker; empty where it has started no processes."""
        return getattr(self._transport, "handles", {})

    def interrupt(self) -> None:
        """Lets the workers end, between two of their steps, without waiting for them: `next` then finds them gone, and
        none is replaced. May be called from any thread."""
        self._is_interrupted = True
        self._transport.interrupt()

    def close(self) -> None:
        """Stops the workers; kills those that have not within `collector.close_timeout_s`. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
