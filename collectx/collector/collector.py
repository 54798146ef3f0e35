"""A collector: iterate to get batches, publish to hand new weights to the workers. A schedule over a transport.

Runs in the trainer's process. Must not know how bytes travel, where workers are, or what is learnt from a batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

import torch
from tensordict import TensorDict
from torch import nn

from collectx.batch import Layout, to_tensordict
from collectx.collector.delivery import Delivery, Episode, Part, Timings
from collectx.collector.schedule import Schedule
from collectx.policy.weights import FlatWeights
from collectx.transport.base import Arrival, Transport


@dataclass(frozen=True)
class DeliverySpec:
    """How batches are handed to the user.

    Attributes:
        region_layout: of the memory that one batch lies in.
        batch_size: of the TensorDict, "time" last.
        frames_per_batch: its product.
        total_frames: frames of the whole run, or -1.
        zero_copy: whether batches are views of the transport's memory, valid until the next is asked for.
        storing_device: where batches go; None leaves them where they are, without a device.
    """

    region_layout: Layout
    batch_size: tuple[int, ...]
    frames_per_batch: int
    total_frames: int
    zero_copy: bool
    storing_device: torch.device | None


class Collector:
    """Yields TensorDicts of `frames_per_batch` frames (`collectx/batch.py`) until `total_frames` are delivered.

    Attributes:
        delivery: what is known of the batch delivered last.
        policy_version: newest published version.
    """

    delivery: Delivery

    def __init__(self, transport: Transport, schedule: Schedule, spec: DeliverySpec, events: Callable[..., None]):
        self._transport = transport
        self._schedule = schedule
        self._spec = spec
        self._events = events
        self._num_delivered = 0
        self._lent: tuple[Arrival, ...] = ()
        self.policy_version = -1
        self.total_frames = spec.total_frames
        # Also runs at exit, so that a forgotten collector leaves no process behind.
        self._finalizer = weakref.finalize(self, transport.close)

    def __iter__(self) -> Iterator[TensorDict]:
        return self

    def __next__(self) -> TensorDict:
        """Blocks until a batch is there.

        Raises:
            StopIteration: all frames were delivered.
            RuntimeError: the collector is closed.
            WorkerTimeout, WorkerDied, Exception: see `Transport.receive`.
        """
        spec = self._spec
        if spec.total_frames >= 0 and self._num_delivered * spec.frames_per_batch >= spec.total_frames:
            raise StopIteration
        if not self._finalizer.alive:
            raise RuntimeError("this collector is closed")
        began = perf_counter()
        self._release(self._lent)
        for grant in self._schedule.begin():
            self._transport.grant(*grant)
        parts = None
        while parts is None:
            parts = self._schedule.arrived(self._receive())
        waited_s = perf_counter() - began
        memory = self._transport.region(parts[0].worker, parts[0].slot)
        if spec.zero_copy:
            self._lent = parts
        else:
            memory = memory.to(spec.storing_device or "cpu", copy=True)
            self._release(parts)
        tensors = spec.region_layout.tensors(memory, spec.batch_size)
        batch = to_tensordict(tensors, spec.batch_size, spec.storing_device)
        self.delivery = self._describe(parts, waited_s)
        self._num_delivered += 1
        return batch

    def _receive(self) -> Arrival:
        try:
            return self._transport.receive()
        except Exception as error:
            self._events("worker_failed", type=type(error).__name__, message=str(error))
            raise

    def _release(self, parts: tuple[Arrival, ...]) -> None:
        self._lent = ()
        if parts:
            for grant in self._schedule.released(parts):
                self._transport.grant(*grant)

    def _describe(self, arrivals: tuple[Arrival, ...], waited_s: float) -> Delivery:
        frames = self._spec.frames_per_batch // len(arrivals)
        parts = tuple(
            Part(
                arrival.worker,
                arrival.tally.policy_version,
                frames,
                Timings(arrival.tally.env_s, arrival.tally.policy_s, arrival.tally.wait_s, arrival.tally.send_s),
                tuple(Episode(*episode) for episode in arrival.tally.episodes),
            )
            for arrival in arrivals
        )
        return Delivery(self._num_delivered, frames * len(arrivals), parts, self.policy_version, waited_s)

    def publish(self, policy: nn.Module | None) -> int:
        """Makes the policy's present weights the newest; returns their version (0 the first time). They are copied
        before this returns. A worker takes them before its next batch."""
        self.policy_version = self._transport.publish(FlatWeights(policy).write)
        return self.policy_version

    def close(self) -> None:
        """Stops the workers; kills those that have not within `collector.close_timeout_s`. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Collector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
