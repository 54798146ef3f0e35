"""The trainer's record of one process of a worker, as the transport sees it.

Also defines `Handle`, the interface that every launcher's handles implement, ends processes, and makes the errors of
workers that died or hang.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from typing import Protocol, TypeAlias

from collectx.config.problem import counted, current_names, opt
from collectx.errors import JobEnded, WorkerDied, WorkerTimeout
from collectx.fork_server import descendants
from collectx.progress import LEAST_CPU, STEPS, Counts, cpu_s
from collectx.transport.connections import LONGEST_WAIT_S, MessageReader, MessageWriter

# An option, and its value in seconds.
Limit: TypeAlias = tuple[str, float]

# Seconds that processes may take to end after a signal.
_SIGNAL_S = 1.0
# The signals of crashes.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Handle(Protocol):
    """A started worker process, with the interface of `multiprocessing.Process`.

    Attributes:
        sentinel: a file descriptor that becomes readable when the process ends; -1 without one.
        pid: None if the process is not on this machine; the supervisor then does not wait for its end. A process of
            this machine leads a process group, and may have a `mark`; see `collectx.fork_server.descendants`.
        exitcode: None while the process runs.
    """

    @property
    def sentinel(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exitcode(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def end_processes(handles: Sequence[Handle], timeout_s: float) -> None:
    """Waits up to `timeout_s` seconds until the processes have ended. Then sends SIGTERM to those on other hosts; those
    of this machine ignore it. A second later, kills all that are left. Also ends what the processes of this machine
    have started.
    """
    _join(handles, timeout_s)
    if remote := [handle for handle in handles if handle.pid is None and handle.exitcode is None]:
        for handle in remote:
            handle.terminate()
        _join(remote, _SIGNAL_S)
    for handle in handles:
        if handle.exitcode is None:
            handle.kill()
    _join(handles, _SIGNAL_S)
    marks = {mark for handle in handles if (mark := getattr(handle, "mark", None)) is not None}
    descendants.end([marks], [handle.pid for handle in handles if handle.pid is not None])


def _join(handles: Sequence[Handle], timeout_s: float) -> None:
    deadline = time.monotonic() + min(timeout_s, LONGEST_WAIT_S)
    for handle in handles:
        handle.join(max(0.0, deadline - time.monotonic()))


def timeout_error(name: str, has_joined: bool, limit: Limit, progress: str, stacks: str = "") -> WorkerTimeout:
    """Returns the error of a worker that has exceeded a timeout. `progress` is a sentence about how far the worker has
    come."""
    option, limit_s = opt(limit[0]), limit[1]
    if has_joined:
        what, longer = "made no progress for", "If one reset or step of its envs can take longer"
        how = progress
    else:
        what, longer = "has not joined after", "To wait longer"
        how = (
            "It may still be queued, be slow to start, or be unable to reach the trainer: see its log. Workers on "
            f"other hosts need open TCP ports, and perhaps another network ({opt('backend.interface')})"
        )
    text = f"{name} {what} {limit_s:g} s ({option}={limit_s:g}). {how}. {longer}, raise {option}."
    return WorkerTimeout(f"{text}{stacks and ' '}{stacks}")


def death_error(
    name: str, has_joined: bool, handle: Handle | None, join_timeout_s: float, error: Exception | None
) -> WorkerDied | JobEnded:
    """Returns the error of a worker whose process or connection has ended. If it is a process of this machine, blocks
    until it has ended, up to `join_timeout_s` seconds. `error` is the error that a read from its connection raised."""
    if handle is None or handle.pid is None:
        if (scheduler := getattr(handle, "ended_by", None)) is not None:
            return JobEnded(
                f"{name} is gone, because {scheduler} ended its job. Possible causes: it was preempted or "
                "cancelled, or it reached its time limit."
            )
        if not has_joined:
            return WorkerDied(f"{name} ended before it joined the trainer. Its log may say why.")
        cause = "" if error is None or isinstance(error, EOFError) else f" ({error})"
        return WorkerDied(
            f"{name} is gone{cause}: its connection broke before it reported an error. Possible causes: it was killed, "
            "ran out of memory, crashed in native code of the env, or its host was lost."
        )
    handle.join(join_timeout_s)
    code = handle.exitcode
    how = "is still running but closed its connection" if code is None else f"ended with exit code {code}"
    causes = "it was killed, ran out of memory, or crashed in native code of the env"
    if code is not None and code < 0:
        number = -code
        how = f"was killed by signal {number}"
        with suppress(ValueError):
            how += f" ({signal.Signals(number).name})"
        causes = "another process sent the signal"
        if number == signal.SIGKILL:
            causes = f"memory ran out, or {causes}"
        elif number in _CRASHES:
            causes = f"native code of the env crashed, or {causes}"
    if code is not None and code >= 0:
        causes = "a call of os._exit, or an exit in native code of the env"
    if code == 1 and current_names() is not None:  # Python's exit code after a traceback, in a worker of a script
        script = 'a script that makes a collector outside of its `if __name__ == "__main__":`'
        causes = f"{script}, a call of os._exit, or an exit in native code of the env"
    who = f"{name[:-1]}; pid {handle.pid})" if name.endswith(")") else f"{name} (pid {handle.pid})"
    return WorkerDied(f"{who} {how} without reporting an error. Possible causes: {causes}.")


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
        connection, reader, writer: the connection for control messages, and its reader and writer; None until the
            worker has joined.
        handle: the handle of the process, if the trainer started it.
        host: name of its host; None for the trainer's host.
        num_outstanding: number of granted slots that were not delivered, and of requests that were not answered.
        has_delivered: whether it has delivered a batch.
        limit: the timeout that applies while `num_outstanding` is above 0.
        counts: its counters in shared memory (`collectx.progress`); None if it sends them in messages.
        progress: the last known counts.
        cpu_s: the processor time of its process when `is_starting` last read it.
        log_size: the bytes in its log when its timer last expired, before it connected.
        is_reported: whether an event has said that it waits to be started.
        began_s, progressed_s: when its current task began, and when its counts last changed, in seconds of
            `PeerTimers.now_s`.
    """

    index: int
    state: JoinState = JoinState.EXPECTED
    connection: Connection | None = None
    reader: MessageReader | None = None
    writer: MessageWriter | None = None
    handle: Handle | None = None
    host: str | None = None
    num_outstanding: int = 0
    has_delivered: bool = False
    limit: Limit | None = None
    counts: memoryview | None = None
    progress: Counts | None = None
    cpu_s: float = 0.0
    log_size: int = 0
    is_reported: bool = False
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
        """Whether a local process is still starting: it has reported no progress, as while it imports the user's
        script, but has used the processor since the last call."""
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
