"""The interface of a transport: slots travel to the trainer, grants and weights to the workers. It has two ends:

      trainer's process (Transport)                        worker's process (Link)
      grant(worker, slot)  -------- may be filled -------->  acquire() -> Fill
      send_request(worker) ----- between two batches ----->  acquire() -> Request
      receive() -> Arrival <-------- is filled ------------  send(slot, report)
      publish(writes)      ------- newest weights --------->  refresh(read, version)
      close()              ------------ stop ------------->  acquire() -> None, and `stop` becomes true

Backpressure is by slots: a worker fills only granted slots, and a slot is granted again after it was read.

            granted            filled             read
    [free] --------> [worker] --------> [trainer] ------> [free]

When a worker is gone, `receive` returns one `Departure`. Its undelivered slots are lost; the other workers continue,
and a replacement may be attached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from collectx.batch import Key, Layout, Leaf, Slot

# Fills a flat uint8 buffer of `SlotSpec.weights_nbytes` bytes with weights.
Write: TypeAlias = Callable[[torch.Tensor], object]
# Functions by worker, or one for all workers, with the key None.
Writes: TypeAlias = Mapping[int | None, Write]

# Where the weights of a version are, as a transport keeps them.
_Weights = TypeVar("_Weights")


@dataclass(frozen=True)
class SlotSpec:
    """The slots, each for one worker's batch or its part of one, and the weights. Known to both ends.

    Attributes:
        leaves: the tensors of one frame.
        rows, steps: the size of one slot.
        num_slots: the number of slots of each worker.
        stacked: a batch consists of slot k of all workers. In shared memory these slots are one region of
            `num_workers * rows` rows, so that nothing is copied; otherwise each slot is a separate region.
        require_latest: a slot is filled with the newest weights at the time of its grant, or newer ones.
        grants_name_version: a slot is filled with the weight version that its grant names.
        weights_nbytes: the size of one flat copy of the policy's weights.
        first_version: the version of the first published weights.
    """

    leaves: tuple[Leaf, ...]
    rows: int
    steps: int
    num_workers: int
    num_slots: int
    stacked: bool
    require_latest: bool
    weights_nbytes: int
    first_version: int = 0
    grants_name_version: bool = False
    _layouts: dict[int, Layout] = field(default_factory=dict, init=False, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data, for workers on other hosts."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self) if attribute.init}
        return values | {"leaves": [leaf.to_json() for leaf in self.leaves]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SlotSpec:
        """The inverse of `to_json`."""
        return cls(**{**values, "leaves": tuple(map(Leaf.from_json, values["leaves"]))})

    def layout(self, num_parts: int = 1) -> Layout:
        """The layout of `num_parts` slots as one batch."""
        if num_parts not in self._layouts:
            self._layouts[num_parts] = Layout(self.leaves, self.rows * num_parts, self.steps)
        return self._layouts[num_parts]


@dataclass(slots=True, eq=False)
class SlotReport:
    """A worker's report about a batch that it filled.

    Attributes:
        policy_version: the weight version that acted first.
        frames: how many frames the batch contains; if it ended early, fewer than its slot, all in the first steps.
        env_s, policy_s: seconds spent stepping envs, and calling the policy.
        returns, lengths: float64 and int64, `[episodes]`: undiscounted return and number of frames of each episode that
            ended in this batch, in order of time.
        wait_s: seconds spent waiting for the grant.
        send_s: seconds spent sending the previous batch, and taking new weights for this one.
        metrics: `InfoMetrics.take` of the batch's steps, `[2, metrics]` float64; empty without `env.metrics`.
        added: what the user's hook added to the batch: tensors `[envs, steps, *shape]` by key.
    """

    policy_version: int
    frames: int
    env_s: float
    policy_s: float
    returns: np.ndarray
    lengths: np.ndarray
    wait_s: float = 0.0
    send_s: float = 0.0
    metrics: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))
    added: dict[Key, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A filled slot of a worker, in the trainer's process: one worker's part of a batch."""

    worker: int
    slot: int
    report: SlotReport


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker is gone: its code raised, its process or its connection ended, or it exceeded a timeout. Its granted but
    undelivered slots are lost.

    Attributes:
        error: the error of user code (original type, remote traceback as a note), `WorkerDied` or `WorkerTimeout`.
    """

    worker: int
    error: Exception


class Request(NamedTuple):
    """A request to a worker: the name of a method of `collectx.worker.requests.RequestHandler`, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


# Requests whose arguments and results are tensors and plain data, which travel over networks too.
PLAIN_REQUESTS = ("ready", "state", "load", "change", "get_attr")


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What the method of a request returned, or the error that it raised."""

    worker: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker on a network has connected. Its earlier grants are sent now. `info` is for the event log."""

    worker: int
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reset:
    """All envs of a worker are reset before a slot is filled.

    Attributes:
        seed: the envs' seeds are derived from it; None: the envs keep their random state.
        static: whether `seed` itself is the seed of every env.
    """

    seed: int | None = None
    static: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """A granted slot, in the worker's process.

    Attributes:
        reset: comes before the slot is filled; None: there is none.
    """

    slot: int
    reset: Reset | None = None


def keep_granted(granted: dict[int, _Weights], version: int, newest: _Weights) -> list[_Weights]:
    """Keeps the weights of a version that is granted, with `SlotSpec.grants_name_version`. Workers fill two batches at
    a time, so only the last two versions are kept.

    Args:
        granted: the weights of the versions that are kept, the oldest first.
        newest: the weights of `version`, if they are not kept already.

    Returns:
        The weights that are no longer kept.
    """
    granted.setdefault(version, newest)
    return [granted.pop(next(iter(granted))) for _ in range(len(granted) - 2)]


class Transport(Protocol):
    """The trainer's end. Used from one thread, except `interrupt`.

    Attributes:
        carries_objects: whether requests and replies may be any objects, as all processes belong to one user on one
            machine, and they may be pickled. Otherwise they are tensors and plain data, of `PLAIN_REQUESTS` only.
    """

    carries_objects: bool

    def expect(self, worker: int, make_spec: Callable[[], dict[str, Any]]) -> None:
        """Allows one process of a worker to connect over a network. Must be called before the process is started.

        Args:
            make_spec: returns what is sent to the process when it has connected, as JSON-compatible data. May be called
                from any thread.
        """

    def attach(self, worker: int, handle: Any) -> None:
        """Watches a started worker: a process (`collectx.transport.handles.Handle`), or inline a generator."""

    def grant(self, worker: int, slot: int, reset: Reset | None = None, version: int | None = None) -> None:
        """Allows `worker` to fill `slot`, after `reset`. With `SlotSpec.require_latest`, the worker acts with the
        newest weights of this moment, or newer ones; with `SlotSpec.grants_name_version`, with those of `version`,
        which is the newest one or one of the last two that were granted. Does not block. Does nothing for a worker that
        is gone and whose `Departure` was not received yet."""

    def receive(self) -> Arrival | Departure | Joined | Reply:
        """Blocks until a granted slot is full, a request was answered, or a worker has joined or is gone.

        A worker is gone with `WorkerTimeout` if it makes no progress for `collector.start_timeout_s` (before its first
        batch) or `collector.worker_timeout_s` (afterwards): it owes a batch, and makes, resets or steps no env.
        """

    def gather(self, parts: Sequence[Arrival], copy: bool) -> torch.Tensor:
        """Returns the bytes of filled slots, which are of one index or of one worker, concatenated along the rows: flat
        uint8, laid out as `Layout(leaves, rows * len(parts), steps)`. Must be called before any of these slots is
        granted again.

        Args:
            copy: whether the result is the caller's memory. Otherwise it may be the transport's, valid until one of
                these slots is granted again or another batch is gathered.
        """

    def publish(self, writes: Writes) -> int:
        """Makes the weights that `writes` write the newest, all of one version, and returns the version:
        `SlotSpec.first_version` for the first call, then one more each time. Does not wait for workers. If a `write`
        raises, nothing is published. With `SlotSpec.grants_name_version`, replaces a version that was not granted.

        Args:
            writes: by worker: each acts with the weights that its `write` writes until newer ones are published for it
                or for all, and the other workers keep their weights and version. Or `{None: write}`: for all workers,
                which is the only form with `SlotSpec.grants_name_version`.
        """

    def newest_weights(self) -> torch.Tensor:
        """Returns a copy of the newest weights that were published for all workers."""

    def send_request(self, worker: int, request: Request) -> None:
        """Sends a request, which the worker answers after its earlier grants; `receive` returns the `Reply`. Does not
        block."""

    def preempt(self, requested: bool) -> None:
        """Sets the workers' `Link.preempted`. No effect over a network."""

    def interrupt(self) -> None:
        """Stops the workers between two of their steps, without waiting; afterwards they count as gone. May be called
        from any thread."""

    def close(self) -> None:
        """Stops the workers and releases all resources; kills workers that have not stopped within
        `collector.close_timeout_s`. Idempotent."""


class Stop(Protocol):
    """A flag that the step loop reads between two steps: `stop[0]` is nonzero once the worker should stop."""

    def __getitem__(self, index: int, /) -> int: ...


class Link(Protocol):
    """The worker's end. Used from one thread.

    Attributes:
        slots: this worker's slots, as views of the transport's memory.
        batch: the slots and the weights.
        stop: whether the worker should stop. Reading it costs less than a microsecond: the loop does so in every step.
        preempted: whether the current batch should end with the frames it contains. As fast to read as `stop`.
    """

    @property
    def batch(self) -> SlotSpec: ...
    @property
    def slots(self) -> Sequence[Slot]: ...
    @property
    def stop(self) -> Stop: ...
    @property
    def preempted(self) -> Stop: ...

    def acquire(self) -> Fill | Request | None:
        """Blocks until the trainer grants a slot or sends a request. Returns None if the worker should stop, or the
        trainer is gone."""

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        """Calls `read` with this worker's newest weights if their version is not `version`; returns their version. The
        weights are never a mixture of two versions."""

    def send(self, slot: int, report: SlotReport) -> None:
        """Delivers a filled slot. The worker must not touch it before it is granted again."""

    def reply(self, value: Any, error: Exception | None = None) -> None:
        """Answers the request that `acquire` returned."""

    def report_progress(self) -> None:
        """Lets the trainer see what this process counts from now on (`collectx.progress`). Called once, in the worker's
        process, before its envs are made."""

    def fail(self, error: BaseException) -> None:
        """Reports the error that ends this worker, without waiting. Called once."""
