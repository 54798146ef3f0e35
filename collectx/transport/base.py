"""What every transport promises: slots go up, grants and weights come down. Its two ends:

      trainer's process (Transport)                        worker's process (Link)
      grant(worker, slot)  ------- "you may fill it" ---->  acquire() -> slot
      receive() -> Arrival <------ "it is full" ----------  send(slot, tally)
      publish(write)       ------- newest weights --------> refresh(read, version)
      close()              ------- "stop" ----------------> acquire() -> None, and `stop` becomes true

Backpressure is by slots: a worker fills only what was granted, and each grant is given again after its slot was read.

            granted            filled             read
    [free] --------> [worker] --------> [trainer] ------> [free]

Must not know envs, policies, schedules or launchers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from collectx.batch import Leaf, Slot


@dataclass(frozen=True)
class SlabSpec:
    """The memory of all slots.

    Attributes:
        leaves: of one frame.
        rows, steps: of one worker's slot.
        num_workers: how many workers there are.
        num_slots: slots of each worker.
        joined: slot k of all workers lies in one region of `num_workers * rows` rows, so that a sync batch needs no
            joining; otherwise every slot is a region of its own.
        weights_nbytes: size of one flat copy of the policy's weights.
    """

    leaves: tuple[Leaf, ...]
    rows: int
    steps: int
    num_workers: int
    num_slots: int
    joined: bool
    weights_nbytes: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What a worker says about the batch it has just filled. Times in seconds; `episodes` are (return, length)."""

    policy_version: int
    env_s: float
    policy_s: float
    wait_s: float
    send_s: float
    episodes: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A filled slot of a worker, in the trainer's process."""

    worker: int
    slot: int
    tally: Tally


class Transport(Protocol):
    """The trainer's end. Used from one thread."""

    def grant(self, worker: int, slot: int) -> None:
        """Lets `worker` fill `slot`. Does not block."""

    def receive(self) -> Arrival:
        """Blocks until a granted slot is full.

        Raises:
            WorkerTimeout: a worker let `collector.start_timeout_s` (its first batch) or `collector.worker_timeout_s`
                (any other) pass since its grant.
            WorkerDied: a worker's process ended without a word.
            Exception: what user code raised in a worker: original type, remote traceback as a note.
        """

    def region(self, worker: int, slot: int) -> torch.Tensor:
        """The bytes of the region in which the slot lies: flat uint8, laid out by `region_layout`. To be
        read between the arrival and the next grant of the slot."""

    def publish(self, write: Callable[[torch.Tensor], None]) -> int:
        """Calls `write` with a flat uint8 buffer of `weights_nbytes`, makes what it wrote the newest weights and
        returns their version: 0 for the first call, then one more each time. Does not wait for workers."""

    def close(self) -> None:
        """Stops the workers and releases everything; kills those that have not stopped within
        `collector.close_timeout_s`. Idempotent."""


class Link(Protocol):
    """The worker's end. Used from one thread.

    Attributes:
        slots: this worker's slots, as views of the transport's memory.
        stop: one byte that becomes nonzero when the trainer wants the worker to stop at once, between two steps.
    """

    slots: Sequence[Slot]
    stop: memoryview

    def acquire(self) -> int | None:
        """Blocks until the trainer grants a slot, for as long as the trainer lives; None means stop."""

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        """Calls `read` with the newest weights if their version differs from `version`; returns the newest version.
        Never shows a mixture of two versions."""

    def send(self, slot: int, tally: Tally) -> None:
        """Hands the filled slot over. The worker must not touch it before it is granted again."""

    def fail(self, error: BaseException) -> None:
        """Reports what ended this worker."""
