"""The collector: a schedule over a transport. Yields batches and publishes weights, in the trainer's process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing.util import Finalize
from time import perf_counter
from typing import Any

from tensordict import TensorDict
from torch import nn

from collectx.collector.batch_info import Delivery, DeliverySpec
from collectx.collector.members import Members
from collectx.collector.owner import Owner
from collectx.collector.requests import Requests
from collectx.policy.weights import FlatWeights
from collectx.schedule.base import Grant, Schedule
from collectx.transport.base import NO_RESET, PLAIN_REQUESTS, RESET, Arrival, Departure, Joined, Reply, Transport, Write


class Collector(Iterator[TensorDict], AbstractContextManager["Collector"]):
    """Yields TensorDicts of `frames_per_batch` frames (`collectx/batch.py`), of fewer where not all sync workers take
    part, until `total_frames` are delivered. The last steps of a part with fewer frames than its slot are undefined.

    Attributes:
        delivery: the metadata of the last batch.
        members: which workers take part.
        owner: the process that may use it. Others cannot collect, publish or ask.
        policy_version: the newest published version.
        leaves: of every batch.
        num_frames, num_batches, frames_by_worker: delivered so far.
    """

    delivery: Delivery

    def __init__(self, transport: Transport, schedule: Schedule, spec: DeliverySpec, members: Members):
        self.transport = transport
        self.owner = Owner()
        self._schedule = schedule
        self._spec = spec
        self.members = members
        self.num_batches = 0
        self._is_interrupted = False
        self.num_frames = 0
        self.frames_by_worker: Counter[int] = Counter()
        self._failure: Exception | None = None
        # The reset that goes with the next grant of a worker.
        self._resets: dict[int, int] = {}
        # The parts of the next batch, from when they are complete until they are counted as delivered.
        self._next_parts: tuple[Arrival, ...] | None = None
        # Parts that were delivered and whose slots are not released.
        self._delivered: tuple[Arrival, ...] = ()
        # For each worker, how many of its slots are granted and not full.
        self._num_granted: Counter[int] = Counter()
        # Slots that are full and were not delivered.
        self._num_full = 0
        self._requests = Requests(transport, members)
        self.policy_version = -1
        self.total_frames = spec.total_frames
        self.leaves = spec.slab.leaves
        # Also runs at exit, before multiprocessing joins its processes: a collector that was not closed leaves none
        # behind and does not block. Does not run in a forked process.
        self._finalizer = Finalize(self, transport.close, exitpriority=0)

    def __next__(self) -> TensorDict:
        """Blocks until the next batch is complete.

        Raises:
            RuntimeError: the collector is closed, of another process, or in use by another thread.
            WorkerTimeout, WorkerDied, Exception: a worker is gone, and `collector.on_worker_failure` ends the run.
        """
        spec = self._spec
        with self.owner:
            parts, waited_s = self._wait_for_parts()
            memory = self.transport.gather(parts, copy=not spec.zero_copy and spec.storing_device is None)
            if spec.storing_device is not None and not spec.zero_copy:
                memory = memory.to(spec.storing_device, copy=True)
            self._count(parts, waited_s)
            if not spec.zero_copy:
                self._release_slots()
            return spec.batch(memory, len(parts))

    def advance(self) -> None:
        """Counts the next batch as delivered without reading its memory, for workers with `Hooks.write_batch`."""
        with self.owner:
            parts, waited_s = self._wait_for_parts()
            self._count(parts, waited_s)
            self._release_slots()

    def wait_until_idle(self) -> None:
        """After `advance`: waits until the workers have filled their granted slots, and counts these batches as
        delivered. The next `advance` grants slots again. Raises what `next` raises."""
        with self.owner:
            while (parts := self._take_parts()) or any(self._num_granted.values()):
                if parts:
                    self._count(parts, 0.0)
                else:
                    self._handle_event()

    def _wait_for_parts(self) -> tuple[tuple[Arrival, ...], float]:
        """Blocks until the next batch is complete; returns its parts, and for how many seconds it has blocked."""
        if 0 <= self._spec.total_frames <= self.num_frames:
            raise StopIteration
        self._check_usable()
        began = perf_counter()
        while self.members.are_too_few and not self.is_draining:
            self._handle_event()
        self._release_slots()
        while (parts := self._take_parts()) is None:
            if not self.members.are_too_few:
                self._grant(self._schedule.begin())
            self._handle_event()
        return parts, perf_counter() - began

    def _check_usable(self) -> None:
        if not self._finalizer.still_active():
            raise RuntimeError("this collector is closed")
        if self._failure is not None:
            raise self._failure

    def _take_parts(self) -> tuple[Arrival, ...] | None:
        """The parts of the next batch if it is complete, the same ones until they are counted."""
        if self._next_parts is None:
            self._next_parts = self._schedule.take()
        return self._next_parts

    def _count(self, parts: tuple[Arrival, ...], waited_s: float) -> None:
        self._next_parts, self._delivered = None, self._delivered + parts
        self._num_full -= len(parts)
        frames = sum(part.report.frames for part in parts)
        self.delivery = Delivery(self.num_batches, frames, parts, self.policy_version, waited_s)
        self.num_batches += 1
        self.num_frames += frames
        for part in parts:
            self.frames_by_worker[part.worker] += part.report.frames

    def _release_slots(self) -> None:
        parts, self._delivered = self._delivered, ()
        if parts:
            self._grant(self._schedule.released(parts))

    def _grant(self, grants: Iterable[Grant]) -> None:
        for worker, slot in grants:
            self._num_granted[worker] += 1
            self.transport.grant(worker, slot, self._resets.pop(worker, NO_RESET))

    def _handle_event(self) -> None:
        """Blocks until the transport has an event."""
        event = self.transport.receive()
        if isinstance(event, Arrival):
            self._num_granted[event.worker] -= 1
            self._num_full += 1
            self._schedule.arrived(event)
        elif isinstance(event, Joined):
            self.members.handle_joined(event)
        elif isinstance(event, Reply) and event.worker not in self.members.starting:
            self._requests.handle_reply(event)
        else:
            self._handle_change(event)

    def _handle_change(self, event: Departure | Reply) -> None:
        """Handles that a worker is gone, or the first reply of one that is starting."""
        try:
            if isinstance(event, Reply):
                self.members.handle_first_reply(event, self.num_batches)
                if event.value is None and event.worker in self.members.ready:
                    self._resets.pop(event.worker, None)  # its envs are restored, or new
                return
            self._num_granted.pop(event.worker, None)
            self._requests.handle_departure(event)
            grants = self.members.handle_departure(event, self._is_interrupted)
        except Exception as failure:
            self._failure = failure
            raise
        self._grant(grants)

    @property
    def steps(self) -> list[int]:
        """For each part of the last batch, how many of its steps are filled."""
        return [part.report.frames // self._spec.slab.rows for part in self.delivery.parts]

    def publish(self, policy: nn.Module | None) -> int:
        """Makes the current weights of the policy the newest; returns their version, 0 the first time. They are copied
        before this returns. A worker takes them before its next batch; an async worker over a network does not wait for
        them. When a run is reproduced, blocks until all batches of the previous version have arrived, and raises what
        `next` raises."""
        return self.publish_flat(FlatWeights(policy).write)

    def publish_flat(self, write: Write) -> int:
        """As `publish`; `write` copies the weights into a flat buffer."""
        return self._publish(lambda: self.transport.publish(write))

    def publish_to(self, writes: Mapping[int, Write]) -> int:
        """As `publish`, for some workers, each with individual weights; see `Transport.publish_to`."""
        return self._publish(lambda: self.transport.publish_to(writes))

    def _publish(self, publish: Callable[[], int]) -> int:
        self.owner.check_process()
        while self._schedule.must_wait_to_publish:
            self._grant(self._schedule.before_publish())
            self._handle_event()
        self.policy_version = publish()
        self._schedule.published(self.policy_version)
        return self.policy_version

    @property
    def workers(self) -> list[int]:
        """Indices of the workers that take part."""
        return sorted(self.members.ready)

    def zeros(self) -> TensorDict:
        """A batch of all workers, of zeros."""
        return self._spec.zeros(len(self.members.ready) if self._schedule.stacked else 1)

    @property
    def is_draining(self) -> bool:
        """Whether only the slots are granted without which no batch could be completed, so that the collector becomes
        idle."""
        return self._schedule.is_draining

    @is_draining.setter
    def is_draining(self, value: bool) -> None:
        self._schedule.is_draining = value

    @property
    def is_idle(self) -> bool:
        """Whether no worker has a slot to fill, and no slot is full that was not delivered. A sync collector is idle
        between two batches; an async one after it was draining."""
        return not any(self._num_granted.values()) and not self._num_full

    def count_from(self, num_frames: int, num_batches: int, by_worker: Mapping[int, int] | None = None) -> None:
        """Continues the counts of another collector: `total_frames` includes its frames."""
        self._schedule.skip(num_batches - self.num_batches)
        self.num_frames, self.num_batches = num_frames, num_batches
        self.frames_by_worker.update(by_worker or {})

    def can_ask(self, name: str) -> bool:
        """Whether the transport carries this request."""
        return self.transport.carries_objects or name in PLAIN_REQUESTS

    def ask(self, name: str, *arguments: Any, per_worker: Mapping[int, tuple] | None = None) -> dict[int, Any]:
        """Returns the answers by worker; `name` is a method of `collectx.worker.requests.RequestHandler`. Blocks until
        the workers have filled the slots that were granted before.

        Args:
            per_worker: arguments by worker; other workers are not asked. None: `arguments` for all workers.

        Raises:
            NotImplementedError: the workers are on other hosts, or may be.
            Exception: a worker is gone, as in `next`, or its answer is an error.
        """
        if not self.can_ask(name):
            raise NotImplementedError(f"{name}: only workers in processes of this machine can be asked")
        self._check_usable()
        requests = dict.fromkeys(self.members.ready, arguments) if per_worker is None else per_worker
        with self.owner:
            return self._requests.ask(self._handle_event, name, requests)

    def wait_until_ready(self) -> None:
        """Blocks until the workers have made their envs and policies. Raises what `next` raises."""
        with self.owner:
            self._requests.wait_until_ready(self._handle_event)

    def request_reset(self, reset: int, workers: Iterable[int] | None = None) -> None:
        """Resets the envs of all workers, or of some, before the next slot that they are granted; batches of slots that
        are granted already come first. Does not block. The replacement of a worker that is restarted before is reset
        too. `reset` is `RESET`, or one with seeds (`encode_reset`), which a later `RESET` does not replace."""
        for worker in self.members.ready if workers is None else workers:
            if reset != RESET or self._resets.get(worker, NO_RESET) == NO_RESET:
                self._resets[worker] = reset

    def add(self) -> None:
        """Starts one more worker, of the next index, which takes part from the next batch on. Does not block. For
        network transports only, as the other ones allocate all slots at once."""
        self.members.add()

    def handles(self) -> dict[int, Any]:
        """The launcher's handles of the workers' processes, by worker; empty if workers are not processes."""
        return getattr(self.transport, "handles", {})

    def interrupt(self) -> None:
        """Tells the workers to stop, between two of their steps, and does not wait: `next` then raises that they are
        gone. May be called from any thread."""
        self._is_interrupted = True
        self.transport.interrupt()

    def close(self) -> None:
        """Stops the workers; kills those that have not stopped within `collector.close_timeout_s`. Idempotent."""
        self._finalizer()

    def __exit__(self, *_: object) -> None:
        self.close()
