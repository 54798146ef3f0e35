"""The interface of a transport, which carries slots to the trainer, and grants and weights to the workers. Its two
ends:

      trainer's process (Transport)                        worker's process (Link)
      grant(worker, slot)  -------- may be filled -------->  acquire() -> Fill
      send_request(worker) ----- between two batches ----->  acquire() -> Request
      receive() -> Arrival <-------- is filled ------------  send(slot, report)
      publish(writes)      ------- newest weights --------->  refresh(read, version)
      close()              ------------ stop ------------->  acquire() -> None, and `stop` becomes true

Slots are the backpressure: a worker fills only granted slots, and a slot is granted again after the trainer has read
it.

            granted            filled             read
    [free] --------> [worker] --------> [trainer] ------> [free]

When a worker fails, `receive` returns one `Departure`. The worker's undelivered slots are lost; other workers continue,
and a replacement may be attached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from collectx.batch import Key, Layout, Leaf, Slot

# Writes weights into a flat uint8 buffer of `SlotSpec.weights_nbytes` bytes.
WeightWriter: TypeAlias = Callable[[torch.Tensor], object]
# A function for each worker index, or one for all workers, with the key None.
WeightWriters: TypeAlias = Mapping[int | None, WeightWriter]

# How a transport refers to the weights of a version.
_Weights = TypeVar("_Weights")


@dataclass(frozen=True)
class SlotSpec:
    """The sizes of slots and weights, which both ends know. A slot contains one worker's part of a batch.

    Attributes:
        leaves: the key, shape and dtype of each tensor of a frame.
        rows, steps: number of envs and number of steps in a slot; its tensors are `[rows, steps, *leaf.shape]`.
        stacked: whether a batch consists of slot k of all workers. In shared memory, these slots then form one region
            of `num_workers * rows` rows, so a batch needs no copy. Otherwise, each slot is a region of its own.
        require_latest: whether the weights that fill a slot must be at least as new as its grant.
        grants_name_version: whether a slot must be filled with the weight version that its grant names.
        weights_nbytes: size of a flat copy of the policy's weights.
        first_version: the version of the first published weights.
        num_spare: in shared memory, number of regions beyond those of the slots, for batches that the consumer still
            uses (`collectx.transport.leases`).
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
    num_spare: int = 0
    _layouts: dict[int, Layout] = field(default_factory=dict, init=False, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data, for workers on other hosts."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self) if attribute.init}
        return values | {"leaves": [leaf.to_json() for leaf in self.leaves]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SlotSpec:
        """Returns the spec for a result of `to_json`."""
        return cls(**{**values, "leaves": tuple(map(Leaf.from_json, values["leaves"]))})

    def layout(self, num_parts: int = 1) -> Layout:
        """Returns the memory layout of a batch of `num_parts` slots."""
        if num_parts not in self._layouts:
            self._layouts[num_parts] = Layout(self.leaves, self.rows * num_parts, self.steps)
        return self._layouts[num_parts]


@dataclass(slots=True, eq=False)
class SlotReport:
    """A worker's report about a slot that it filled.

    Attributes:
        policy_version: the weight version of the first step.
        frames: number of frames in the slot. If the batch ended early, they fill its first steps.
        env_s, policy_s: seconds that env steps and policy calls took.
        returns, lengths: undiscounted return, float64, and number of frames, int64, of each episode that ended in this
            slot, `[episodes]`, in the order of their ends.
        wait_s: seconds for which the worker waited for the grant.
        send_s: seconds that sending the previous slot and loading new weights took.
        metrics: `InfoMetrics.take` of the batch's steps, `[2, metrics]` float64; empty without `env.metrics`.
        settings_lag: number of settings that a nested collector has applied since it collected the batch ahead.
        added: tensors that the user's hook added to the batch, `[envs, steps, *shape]`, by key.
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
    settings_lag: int = 0
    added: dict[Key, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A filled slot that the trainer has received: one worker's part of a batch."""

    worker: int
    slot: int
    report: SlotReport


@dataclass(frozen=True, slots=True)
class Departure:
    """A worker has failed: its code raised, its process or connection ended, or it exceeded a timeout. Slots that it
    has not delivered are lost. `error` is the error of the user's code (with its type, and the remote traceback as a
    note), `WorkerDied` or `WorkerTimeout`."""

    worker: int
    error: Exception


class Request(NamedTuple):
    """A request to a worker: the name of a method of `collectx.worker.requests.RequestHandler`, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


# What `Transport.receive` raises if it would wait for ever.
NO_WORK = "internal error: no worker owes a batch or a reply. Please report this with events.jsonl."
# Requests whose arguments and results are tensors and plain data, so they can be sent over networks.
PLAIN_REQUESTS = ("ready", "state", "load", "change", "get_attr")


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """A worker's reply to a request: what the method returned, or the error that it raised."""

    worker: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker on a network has connected; its earlier grants are sent now. `info` is what it tells the event log."""

    worker: int
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset of all envs of a worker, before it fills a slot.

    Attributes:
        seed: the seed from which those of the envs are derived; None: the envs keep their random state.
        static: whether `seed` itself is the seed of every env.
    """

    seed: int | None = None
    static: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """A granted slot, as the worker gets it. `reset` is the reset before the slot is filled; None: no reset."""

    slot: int
    reset: Reset | None = None


def keep_granted(granted: dict[int, _Weights], version: int, newest: _Weights) -> list[_Weights]:
    """Keeps the weights of a granted version, with `SlotSpec.grants_name_version`. Workers fill two batches at a time,
    so the two versions that were granted last are enough. Returns the weights that are no longer kept.

    Args:
        granted: the kept weights by version, the oldest first; this changes the dict.
        newest: the weights of `version`, if `granted` lacks them.
    """
    granted.setdefault(version, newest)
    return [granted.pop(next(iter(granted))) for _ in range(len(granted) - 2)]


class Transport(Protocol):
    """The trainer's end of a transport. Use it from one thread, except `interrupt`. `carries_objects` says whether
    requests and replies are pickled and may contain any objects, because all processes belong to one user on one
    machine. Otherwise only `PLAIN_REQUESTS` are possible, with tensors and plain data."""

    carries_objects: bool

    @property
    def num_stepping(self) -> int | None:
        """Number of workers that have stepped their envs; None for workers in the trainer's process. Any thread may
        read it."""

    def expect(self, worker: int, make_spec: Callable[[], dict[str, Any]]) -> None:
        """Allows one process of a worker to connect over a network. Must be called before the process is started.
        `make_spec` returns what the process is sent when it has connected, JSON-compatible data. Called in any
        thread."""

    def attach(self, worker: int, handle: Any) -> None:
        """Watches a started worker. `handle` is its process (`collectx.transport.peer.Handle`); inline, a
        generator."""

    def grant(self, worker: int, slot: int, reset: Reset | None = None, version: int | None = None) -> None:
        """Allows a worker to fill a slot, after `reset`. With `SlotSpec.require_latest`, the worker acts with the
        weights that are newest now, or newer ones; with `SlotSpec.grants_name_version`, with those of `version`, which
        must be the newest version or one of the last two that were granted. Does not block. Does nothing if the worker
        has failed and `receive` has not returned its `Departure` yet."""

    def receive(self) -> Arrival | Departure | Joined | Reply:
        """Blocks until a granted slot is full, a request was answered, or a worker has joined or failed; returns that
        event.

        A worker fails with `WorkerTimeout` if it owes a batch and makes, resets or steps no env for
        `collector.start_timeout_s` (before its first step) or `collector.worker_timeout_s` (afterwards).
        """

    def gather(self, parts: Sequence[Arrival], copy: bool) -> torch.Tensor:
        """Returns the bytes of filled slots, concatenated along the rows: flat uint8, laid out as `Layout(leaves, rows
        * len(parts), steps)`. The slots share an index, or a single slot is passed. Call this before any of them is
        released. With `copy`, the caller owns the result; otherwise it may be memory of the transport, valid until one
        of these slots is granted again or another batch is gathered."""

    def lease(self, parts: Sequence[Arrival]) -> torch.Tensor | None:
        """Returns what `gather` returns, without a copy, as memory that belongs to the caller: it is used for other
        frames only when the last tensor that views it is gone. Returns None if that is impossible."""

    def release(self, parts: Sequence[Arrival]) -> None:
        """Lets slots be granted again; batches that were leased keep their memory. Call it before `grant`."""

    def publish(self, writes: WeightWriters) -> int:
        """Publishes the weights that `writes` write as one new version; returns its number: `SlotSpec.first_version`
        for the first call, then one more each time. Does not wait for workers. If a function of `writes` raises,
        nothing is published. With `SlotSpec.grants_name_version`, replaces the newest version if it was not granted.

        Args:
            writes: `{None: write}`: weights for all workers. Or a function for each of some workers, which act with
                these weights until newer ones are published for them or for all; the other workers keep their weights
                and version. With `SlotSpec.grants_name_version`, only weights for all.
        """

    def newest_weights(self) -> torch.Tensor:
        """Returns a copy of the newest weights that were published for all workers."""

    def send_request(self, worker: int, request: Request) -> None:
        """Sends a request, which the worker answers when it has filled the slots granted before; `receive` then returns
        the `Reply`. Does not block."""

    def preempt(self, requested: bool) -> None:
        """Sets `Link.preempted` of all workers. Does nothing over a network."""

    def interrupt(self) -> None:
        """Tells the workers to stop after their current step; `receive` then returns their departures. Does not block.
        May be called from any thread."""

    def close(self) -> None:
        """Stops the workers and releases all resources. Blocks for up to `collector.close_timeout_s`, then kills
        workers that have not stopped. Idempotent."""


class Stop(Protocol):
    """A flag that the step loop reads between two steps: `stop[0]` is nonzero as soon as the worker should stop."""

    def __getitem__(self, index: int, /) -> int: ...


class Link(Protocol):
    """The worker's end of a transport. Use it from one thread.

    Attributes:
        stop: whether the worker should stop. The loop reads it in every step, so reading takes less than a microsecond.
        preempted: whether the current batch should end early, with the frames that it contains. As fast to read as
            `stop`.
    """

    @property
    def slot_spec(self) -> SlotSpec: ...
    @property
    def slots(self) -> Mapping[int, Slot] | Sequence[Slot]: ...
    @property
    def stop(self) -> Stop: ...
    @property
    def preempted(self) -> Stop: ...

    def acquire(self) -> Fill | Request | None:
        """Blocks until the trainer grants a slot or sends a request, and returns it. Returns None if the worker should
        stop, or the trainer is gone."""

    def refresh(self, read: Callable[[torch.Tensor], None], version: int) -> int:
        """Calls `read` with this worker's newest weights, flat uint8, unless their version is `version`; returns their
        version. The weights are never a mixture of two versions: after a mixed read, `read` is called again."""

    def send(self, slot: int, report: SlotReport) -> None:
        """Delivers a filled slot. The worker must not change it until it is granted again."""

    def reply(self, value: Any, error: Exception | None = None) -> None:
        """Answers the request that `acquire` returned."""

    def report_progress(self) -> None:
        """Shows the trainer from now on what this process counts (`collectx.progress`). Call it once, in the worker's
        process, before the envs are made."""

    def fail(self, error: BaseException) -> None:
        """Reports the error that ends this worker. Does not block. Call it at most once."""
