"""What every transport promises: slots go up, grants and weights come down. Its two ends:

      trainer's process (Transport)                        worker's process (Link)
      grant(worker, slot)  ------- "you may fill it" ---->  acquire() -> slot
      receive() -> Arrival <------ "it is full" ----------  send(slot, report)
      publish(write)       ------- newest weights --------> refresh(read, version)
      publish_to(writes)   ------- of some workers alone ->
      close()              ------- "stop" ----------------> acquire() -> None, and `stop` becomes true

Backpressure is by slots: a worker fills only what was granted, and each grant is given again after its slot was read.

            granted            filled             read
    [free] --------> [worker] --------> [trainer] ------> [free]

A worker that is gone is told of once, as a `Departure`; what it had not delivered is lost, and the others go on.
Another may be attached in its place. Must not know envs, policies, schedules or launchers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch

from collectx.batch import Leaf, Slot

# Fills a flat uint8 buffer of `SlabSpec.weights_nbytes` with weights.
Write: TypeAlias = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class SlabSpec:
    """The memory of all slots.

    Attributes:
        leaves: of one frame.
        rows, steps: of one worker's slot.
        num_workers: how many workers there are.
        num_slots: slots of each worker.
        stacked: a batch is slot k of all workers. Where they share memory it then lies in one region of
            `num_workers * rows` rows, so that nothing needs joining; otherwise every slot is a region of its own.
        require_latest: a slot is filled with the weights that were the newest when it was granted, or newer ones.
        weights_nbytes: size of one flat copy of the policy's weights.
    """

    leaves: tuple[Leaf, ...]
    rows: int
    steps: int
    num_workers: int
    num_slots: int
    stacked: bool
    require_latest: bool
    weights_nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class BatchReport:
    """What a worker says about the batch it has just filled.

    Attributes:
        policy_version: of the weights that acted first.
        env_s, policy_s, wait_s, send_s: seconds for stepping envs, calling the policy, waiting for a grant, handing
            over (and taking new weights).
        returns, lengths: float64 and int64, `[episodes]`: undiscounted return and frames of each episode that ended in
            this batch, in order of time.
        steps: how many of the slot's steps are filled, from the first on; None: all.
    """

    policy_version: int
    env_s: float
    policy_s: float
    wait_s: float
    send_s: float
    returns: np.ndarray
    lengths: np.ndarray
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A filled slot of a worker, in the trainer's process."""

    worker: int
    slot: int
    report: BatchReport


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker is gone: its code raised, its process or its connection ended, or it let a timeout pass.

    Attributes:
        worker: its index. What it was granted and has not delivered is lost.
        error: what user code raised in it (original type, remote traceback as a note), `WorkerDied` or `WorkerTimeout`.
    """

    worker: int
    error: Exception


# What a worker is asked: the name of a method of `collectx.worker.requests.RequestHandler`, and its arguments.
Request = tuple[str, tuple]


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What a worker answers.

    Attributes:
        worker: its index.
        value: the answer; or `error`, what answering has raised.
    """

    worker: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker of another process has connected; what it was granted before reaches it now.

    Attributes:
        worker: its index.
        info: host and pid, for the event log.
    """

    worker: int
    info: dict[str, Any]


# What `Link.acquire` returns in place of a slot: there is a request (`RequestLink`).
REQUEST_PENDING = -1

# What goes with a grant, an int64: to be done before the slot is filled.
NO_RESET, RESET = 0, 1


def encode_reset(seed: int, static: bool) -> int:
    """The order to reset all envs with seeds that are derived from `seed`, or, `static`, with `seed` itself."""
    return 2 + 2 * seed + static


def decode_reset(code: int) -> tuple[int, bool] | None:
    """What `encode_reset` was told; None for `RESET`, after which envs go on with the seeds that they have."""
    return None if code == RESET else ((code - 2) // 2, bool(code % 2))


class Transport(Protocol):
    """The trainer's end. Used from one thread."""

    def expect(self, worker: int, life: int) -> None:
        """Allows a worker of this index to connect. To be called before it is started."""

    def attach(self, worker: int, handle: Any) -> None:
        """Takes what the launcher has started (`collectx.transport.processes.Handle`; inline, a generator)."""

    def grant(self, worker: int, slot: int, reset: int = NO_RESET) -> None:
        """Allows `worker` to fill `slot`, after the reset that `reset` encodes. With `SlabSpec.require_latest`, the
        worker acts with the newest weights of this moment, or newer ones. Does not block. Does nothing for a worker
        that is gone and whose `Departure` was not received yet."""

    def receive(self) -> Arrival | Departure | Joined | Reply:
        """Blocks until something has happened: a granted slot is full, or a worker has come or gone.

        A worker is gone with `WorkerTimeout` where it let `collector.start_timeout_s` (its first batch) or
        `collector.worker_timeout_s` (any other) pass since its grant.
        """

    def gather(self, parts: Sequence[Arrival], copy: bool) -> torch.Tensor:
        """The bytes of filled slots of one index or of one worker, joined row after row in the order given: flat uint8,
        laid out as `Layout(leaves, rows * len(parts), steps)`. To be called between the arrivals and the next grant of
        any of these slots.

        Args:
            copy: whether the result is the caller's memory. Otherwise it may be the transport's, valid until one of
                these slots is granted again or another batch is gathered.
        """

    def publish(self, write: Write) -> int:
        """Calls `write`, makes what it wrote the newest weights of all workers, and returns their version: 0 for the
        first call, then one more each time. Does not wait for workers."""

    def publish_to(self, writes: Mapping[int, Write]) -> int:
        """As `publish`, for some workers: each acts with the individual weights that its `write` wrote, all of one
        version, until newer ones are published for it or for all. The others keep their weights and their version.
        Where a `write` raises, nothing is published."""

    def preempt(self, requested: bool) -> None:
        """Sets what workers see as `Link.preempted`; where they share no memory with the trainer, they see nothing."""

    def interrupt(self) -> None:
        """Tells the workers to stop, between two of their steps, and waits for nothing; they count as gone afterwards.
        May be called from any thread."""

    def close(self) -> None:
        """Stops the workers and releases everything; kills those that have not stopped within
        `collector.close_timeout_s`. Idempotent."""


@runtime_checkable
class RequestTransport(Protocol):
    """The trainer's end of a transport over which workers can be asked something: their processes belong to one user
    and one machine, so that questions and answers may be pickled."""

    def send_request(self, worker: int, request: Request) -> None:
        """Asks a worker, which answers after what it was granted before; `receive` gives its `Reply`. Does not
        block."""


class Stop(Protocol):
    """What the step loop looks at between two steps: `stop[0]` is nonzero once the trainer wants the worker to stop."""

    def __getitem__(self, index: int, /) -> int: ...


class Link(Protocol):
    """The worker's end. Used from one thread.

    Attributes:
        slots: this worker's slots, as views of the transport's memory.
        stop: see `Stop`; cheap enough for every step.
        preempted: as cheap; nonzero while a batch under way is to end with the frames that it has.
        reset: what came with the grant that was acquired last.
    """

    reset: int

    @property
    def slots(self) -> Sequence[Slot]: ...
    @property
    def stop(self) -> Stop: ...
    @property
    def preempted(self) -> Stop: ...

    def acquire(self) -> int | None:
        """Blocks until the trainer grants a slot, for as long as the trainer lives; None means stop."""

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        """Calls `read` with this worker's newest weights if their version differs from `version`; returns the newest
        version. Never shows a mixture of two versions."""

    def send(self, slot: int, report: BatchReport) -> None:
        """Hands the filled slot over. The worker must not touch it before it is granted again."""

    def fail(self, error: BaseException) -> None:
        """Reports what ends this worker, without waiting; the first report counts."""


class RequestLink(Link, Protocol):
    """The worker's end of a transport that is `RequestTransport`.

    Attributes:
        request: where `acquire` has returned `REQUEST_PENDING`.
    """

    request: Request

    def reply(self, value: Any, error: Exception | None = None) -> None:
        """Answers the request."""
