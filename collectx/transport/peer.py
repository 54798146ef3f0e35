"""The trainer's record of one process of a worker, as the transport sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection

from collectx.progress import OTHERS, STEPS, Counts
from collectx.transport.connections import MessageReader
from collectx.transport.handles import Handle, Limit


class JoinState(Enum):
    """The state of one process of a worker. Any state may change to GONE. In shared memory there is no PAIRING.

    EXPECTED --knows the secret--> PAIRING --both connections are made--> JOINED ----> GONE
             <------it failed-----
    """

    EXPECTED = "expected"
    PAIRING = "pairing"
    JOINED = "joined"
    GONE = "gone"


@dataclass(eq=False)
class Peer:
    """One process of a worker. Its replacement gets another object.

    Attributes:
        index: the worker's.
        connection, reader: carry control messages; None until it has joined.
        handle: its process, if the trainer started it.
        host: where it runs, unless on the trainer's host.
        num_outstanding: grants not yet delivered, and requests not yet answered.
        has_delivered: whether it has ever delivered a batch.
        limit: the timeout that applies while `num_outstanding` is above 0.
        counts: its counters in shared memory (`collectx.progress`); None if it reports them in messages.
        progress: the counts at the last look.
        began_s, progressed_s: when its current task began, and when its counts last changed; both in timer time.
    """

    index: int
    state: JoinState = JoinState.EXPECTED
    connection: Connection | None = None
    reader: MessageReader | None = None
    handle: Handle | None = None
    host: str | None = None
    num_outstanding: int = 0
    has_delivered: bool = False
    limit: Limit | None = None
    counts: memoryview | None = None
    progress: Counts | None = None
    began_s: float = 0.0
    progressed_s: float | None = None

    @property
    def has_joined(self) -> bool:
        """Whether the worker can be sent messages."""
        return self.state is JoinState.JOINED

    def read_counts(self) -> Counts | None:
        """The worker's counters in shared memory; None if it reports them in messages."""
        return None if self.counts is None else (self.counts[STEPS], self.counts[OTHERS])

    def describe_progress(self, num_steps: int) -> str:
        """Progress with the current task, a batch of `num_steps` steps, for messages; "" without any."""
        if self.progress is None or self.progressed_s is None:
            return ""
        steps, others = self.progress
        if steps:
            step_s = (self.progressed_s - self.began_s) / steps
            # A vector env that resets its envs in a step takes more steps than a batch has.
            done = f"{steps} of {num_steps}" if steps <= num_steps else f"{steps}"
            return f"It stepped {done} times, {step_s:.2g} s a step"
        return "" if self.has_delivered else f"It has made or reset envs {others} times, and not stepped them yet"
