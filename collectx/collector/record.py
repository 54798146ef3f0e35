"""The trainer's record of one worker, from its first process to its last. Kept by `WorkerPool`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from collectx.launcher.base import AnyHandle, Entry
from collectx.transport.base import NO_RESET, Reply, Request
from collectx.transport.network.handshake import Endpoint
from collectx.worker.spec import WorkerSpec


class WorkerState(Enum):
    """Whether a worker takes part in batches; see `collectx.collector.pool`."""

    STARTING = "starting"
    READY = "ready"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Role:
    """What processes of one kind do.

    Attributes:
        name: what messages call such a process.
        make_spec: `make_spec(index, incarnation)` returns the spec of a new process.
        entry: `entry(spec)` returns what the process calls.
        endpoint: where the trainer listens for such processes; None if they do not connect over a network.
    """

    name: str
    make_spec: Callable[[int, int], WorkerSpec]
    entry: Callable[[WorkerSpec], Entry]
    endpoint: Endpoint | None = None


@dataclass(eq=False)
class WorkerRecord:
    """A worker: its newest process, and what the trainer's process expects of it.

    Attributes:
        index: among the workers of the collector.
        role: what its processes do.
        incarnation: of its newest process; see `collectx.worker.spec.Placement`.
        spec: of its newest process.
        handle: its newest process; None if its end cannot be observed.
        num_restarts, num_requeues: how many of its processes were started after a failure, and after a scheduler had
            ended the one before.
        num_granted: slots that are granted and not full.
        num_frames: frames delivered, in all of its incarnations.
        first_requests: requests without a reply, to which it has to reply before it is ready. They hold the saved state
            that waits for it.
        num_pending: replies to come to other requests; more than one after a call that was interrupted.
        is_awaited, reply: whether it has yet to reply to the last `WorkerPool.request`, and its reply.
        has_replied: whether its newest process has replied to any request: it has made its envs and policy.
        reset: goes with the next slot that it is granted.
    """

    index: int
    role: Role
    incarnation: int
    spec: WorkerSpec = field(init=False)
    state: WorkerState | None = None
    handle: AnyHandle | None = None
    num_restarts: int = 0
    num_requeues: int = 0
    num_granted: int = 0
    num_frames: int = 0
    first_requests: Sequence[Request] = ()
    num_pending: int = 0
    is_awaited: bool = False
    reply: Reply | None = None
    has_replied: bool = False
    reset: int = NO_RESET

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.role.name} {self.index}"

    def take_reset(self) -> int:
        """The reset that goes with a slot which is granted now."""
        reset, self.reset = self.reset, NO_RESET
        return reset
