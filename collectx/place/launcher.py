"""The launcher interface: how workers are started, and how messages name them. Independent of the code that a worker
runs."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

from collectx.progress import file_size
from collectx.transport.network.handshake import Endpoint
from collectx.transport.peer import Handle, Limit

# The function that a process calls, and the function's arguments.
Entry: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
# A started process, or the generator of an inline worker.
AnyHandle: TypeAlias = Handle | Iterator[None]

_LAST_WORDS_BYTES = 2000
_NO_LOG = ", which does not exist. If not all nodes share the run folder, choose one that they share with hydra.run.dir"


class Launcher:
    """Starts the workers of one collector. The base class serves workers that other programs start. These wait in a
    scheduler's queue, or for the file with the trainer's endpoint, and are never replaced.

    Args:
        log: returns the log file of a worker; None: there are no logs.
        announce: publishes the trainer's endpoint for workers that other programs start; called before the first
            `start`. None: the arguments of workers contain the endpoint.
        join_timeout: the option that limits how long a worker may take to connect, and its seconds; the time for the
            first batch begins afterwards. None: `collector.start_timeout_s` covers both.

    Attributes:
        names: what messages call the processes that are not workers, by index.
        first_worker: the index in the run of the first worker; above 0 for a learner that has a part of the workers.
        max_requeues: how often each worker is restarted after its scheduler ended its job (`JobEnded`).
    """

    is_local = False
    first_worker = max_requeues = 0

    def __init__(
        self,
        log: Callable[[int], Path] | None = None,
        announce: Callable[[Endpoint], None] | None = None,
        join_timeout: Limit | None = None,
    ):
        self.names: dict[int, str] = {}
        self._log = log
        self._announce = announce
        self._join_timeout = join_timeout

    def announce(self, endpoint: Endpoint) -> None:
        """Publishes the trainer's endpoint for workers that other programs start."""
        if self._announce is not None:
            self._announce(endpoint)

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> AnyHandle | None:
        """Starts a process of a worker. May block until the process is forked or submitted, but not until it has
        connected. Returns the handle of the process; None if its end cannot be observed.

        Args:
            entry: what the process calls; ignored if another program starts it.
            num_replaced: how many processes of the worker this launcher started before.
            previous: the handle of the worker's last process.
        """
        return None

    def close(self) -> None:
        """Ends the launcher's threads and the processes that it started. Called by the code that made the launcher,
        after the collector is closed. Idempotent."""

    def name(self, worker: int) -> str:
        """Returns the name of a process, without its log."""
        return self.names.get(worker, f"worker {self.first_worker + worker}")

    def describe(self, worker: int, handle: Handle | None = None) -> str:
        """Returns what messages call a worker: with its job or task, its log and, if it failed, the last line of the
        log."""
        remote = handle if isinstance(handle, RemoteHandle) else None
        words = [remote.text] if remote is not None and remote.text else []
        if self._log is not None:
            log = self._log(worker)
            end = _ending(log, remote.expects_log) if remote is not None and remote.exitcode else ""
            words.append(f"log: {log}{end}")
        name = self.name(worker)
        return f"{name} ({'; '.join(words)})" if words else name

    def waiting(self, worker: int, handle: Handle | None = None) -> str:
        """Returns what a started worker still waits for; "" if it waits for nothing, or if this launcher says so
        itself."""
        return ""

    def log_size(self, worker: int) -> int:
        """Returns the bytes in a worker's log, which grows while the worker imports; 0 without a log. Blocks for a
        look at the file system."""
        return 0 if self._log is None else file_size(self._log(worker))

    def join_timeout(self, worker: int, handle: Handle | None = None) -> Limit | None:
        """Returns how long `worker` may take to connect; see `Launcher`."""
        return self._join_timeout


class InlineLauncher(Launcher):
    """Makes workers that are generators in the trainer's process; the inline transport advances them. The handle of a
    worker is its generator."""

    is_local = True

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> Iterator[None]:
        function, arguments = entry
        return function(*arguments)


class RemoteHandle:
    """The handle (`collectx.transport.peer.Handle`) of a worker that is not a process of this machine, but a task,
    job or step of SLURM, or an actor of Ray. The code that watches the worker calls `finish` when the worker ends.

    Args:
        stop: `stop(handle, signum)` ends the worker, or frees what an ended worker holds; None: the worker ends with
            the trainer's connection.
        is_awaited: `is_awaited(handle)` tells whether `join` waits for the end of the worker and then calls `stop`;
            otherwise `join` returns at once, as the end becomes known late.
        text: names the worker in messages; may be empty.

    Attributes:
        sentinel: a descriptor that becomes readable at the worker's end.
        expects_log: whether a worker that has failed must have written a log.
        ended_by: the scheduler that ended the worker's job, for example "SLURM"; None if the worker failed or lives.
    """

    pid = None

    def __init__(
        self,
        stop: Callable[[RemoteHandle, int], None] | None = None,
        is_awaited: Callable[[RemoteHandle], bool] = lambda handle: False,
        text: str = "",
    ):
        self.exitcode: int | None = None
        self.text = text
        self.actor: Any = None
        self.expects_log = True
        self.ended_by: str | None = None
        self._stop = stop
        self._is_awaited = is_awaited
        self.sentinel, self._end = os.pipe()
        for descriptor in (self.sentinel, self._end):
            # The end of this process closes them after the last thread that may call `finish`.
            weakref.finalize(self, os.close, descriptor).atexit = False

    def finish(self, exitcode: int) -> None:
        """Notes the worker's end. Later calls do nothing."""
        if self.exitcode is None:
            self.exitcode = exitcode
            os.write(self._end, b"\0")

    def join(self, timeout: float | None = None) -> None:
        """Blocks until the worker has ended, at most `timeout` seconds, if the worker `is_awaited`."""
        if self._is_awaited(self) and wait([self.sentinel], timeout):
            self.terminate()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, signum: int) -> None:
        if self._stop is not None:
            self._stop(self, signum)


def _ending(log: Path, is_expected: bool) -> str:
    """Returns the last informative line of a log, as the end of a message that names the log. Reports a missing log
    only if it `is_expected`, because SLURM or the job's shell must have created it."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return _NO_LOG if is_expected else ""
    last = next((line.strip() for line in reversed(lines) if line.strip() and "exit code" not in line.lower()), "")
    return f", which ends: {last}" if last else ""
