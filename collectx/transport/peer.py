"""The trainer's record of one process of a worker, as the transport sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection

from collectx.config.problem import counted
from collectx.progress import LEAST_CPU, STEPS, Counts, cpu_s
from collectx.transport.connections import MessageReader
from collectx.transport.handles import Handle, Limit

# The counts are read, or sent, once a second: the rate of a shorter time would be wrong by a fifth or more.
_LEAST_RATE_S = 5.0


class JoinState(Enum):
    """The state of one process of a worker. Any state may change to GONE. PAIRING exists only over networks.

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
        connection, reader: the connection for control messages, and its reader; None until the worker has joined.
        handle: the handle of the process, if the trainer started it.
        host: name of its host; None for the trainer's host.
        num_outstanding: number of granted slots that were not delivered, and of requests that were not answered.
        has_delivered: whether it has delivered a batch.
        limit: the timeout that applies while `num_outstanding` is above 0.
        counts: its counters in shared memory (`collectx.progress`); None if it sends them in messages.
        progress: the last known counts.
        cpu_s: the processor time of its process when `is_starting` was last True.
        began_s, progressed_s: when its current task began, and when its counts last changed, in seconds of
            `PeerTimers.now_s`.
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
    cpu_s: float = 0.0
    began_s: float = 0.0
    progressed_s: float | None = None

    @property
    def has_joined(self) -> bool:
        """Whether the worker can be sent messages."""
        return self.state is JoinState.JOINED

    def read_counts(self) -> Counts | None:
        """Returns the counts in shared memory; None if the worker sends them in messages."""
        return None if self.counts is None else (self.counts[0], self.counts[1], self.counts[2])

    @property
    def has_stepped(self) -> bool:
        """Whether the worker has stepped its envs more than once."""
        counts = self.read_counts() or self.progress
        return self.has_delivered or (counts is not None and counts[STEPS] > 0)

    def is_starting(self) -> bool:
        """Whether a process of this machine has not begun to count its progress, because it imports the user's script,
        for example, and has used the processor since the last call."""
        if any(self.read_counts() or self.progress or ()) or self.handle is None or self.handle.pid is None:
            return False
        assert self.limit is not None
        before_s, self.cpu_s = self.cpu_s, cpu_s(self.handle.pid)
        return self.cpu_s - before_s > LEAST_CPU * self.limit[1]

    def describe_progress(self, num_steps: int) -> str:
        """Returns a sentence about the progress of the current task, a batch of `num_steps` steps."""
        # A worker may have made envs before its first task began.
        is_of_task = self.progressed_s is not None or not self.has_delivered
        steps, others, imports = self.progress if self.progress is not None and is_of_task else (0, 0, 0)
        if steps and self.progressed_s is not None:
            elapsed_s = self.progressed_s - self.began_s
            rate = f", {elapsed_s / steps:.2g} s a step" if elapsed_s >= _LEAST_RATE_S else ""
            # A vector env that resets its envs in a step takes more steps than a batch has.
            done = f"{steps} of {num_steps}" if steps <= num_steps else f"{steps}"
            return f"It stepped {done} times{rate}"
        if self.has_delivered:
            # Messages with the newest counts may be missing.
            verb = "reported" if self.counts is None else "finished"
            return f"It has {verb} no step of its envs since its last batch"
        if others:
            return f"It has made or reset envs {counted(others, 'time')}, but has not stepped them yet"
        if imports:
            return "It was importing modules, or making its first env"
        return "It has delivered no batch, and finished no step of its envs"
