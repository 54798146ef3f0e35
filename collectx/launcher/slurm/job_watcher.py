"""Workers that are jobs of a scheduler: submitted, watched until they end, cancelled when nobody wants them any more.

    start(worker, life) -> JobHandle     the trainer's thread; only the first start of all waits for the scheduler
    watcher thread                       submits replacements, asks what became of every job, cancels

Runs in the trainer's process. All that takes time is the watcher's, so that a batch never waits for a scheduler. Must
not know which scheduler it is, nor what a worker does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from collectx.errors import LauncherError

# How often the scheduler is asked: soon after something has changed, more and more rarely while nothing does.
_FIRST_POLL_S = 1.0
_LAST_POLL_S = 10.0
_CLOSING_POLL_S = 0.5
# A refused replacement is submitted again after this time, until its `join_timeout` is over.
_RETRY_S = 10.0
# Who waits in the queue for longer than this, and why, is said, and again when it changes, but not too often.
_PATIENCE_S = 4.0
_NOTICE_S = 15.0
_LAST_WORDS_BYTES = 2000
_NO_LOG = ", which does not exist: the run folder must be on a file system that all nodes share (hydra.run.dir)"


@dataclass(frozen=True)
class JobState:
    """What a scheduler says about a job.

    Attributes:
        word: its state in the scheduler's own word, as PENDING.
        is_over: whether it has ended and will not run again.
        has_started: whether it is running, or was.
        reason: why it is in that state, where the scheduler says so.
        node: where it runs, or ran; empty while it waits.
    """

    word: str
    is_over: bool
    has_started: bool
    reason: str = ""
    node: str = ""

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.word}{reason}{f' on {self.node}' if self.node else ''}"


class Scheduler(Protocol):
    """What is needed of a scheduler; every call may take seconds."""

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """Submits one job for each worker; returns their ids. Raises LauncherError: it was refused."""

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """What is known of the jobs; those that the scheduler has forgotten are left out. Raises LauncherError: it does
        not answer."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """Ends the jobs; those that have ended are left alone. Raises LauncherError: it does not answer."""


class JobHandle:
    """One life of one worker: the handle that the collector holds (`collectx.transport.processes.Handle`). Nothing
    here blocks; `join` does not wait, as an end is only known when the scheduler tells.

    Attributes:
        worker: its index.
        id: the scheduler's name of the job; None while it is not submitted.
        state: what the scheduler said last.
        sentinel: a descriptor that becomes readable when the job is over.
        pid: None: it is no process of this machine.
    """

    pid = None

    def __init__(self, worker: int, release: Callable[[JobHandle], None]):
        self.worker = worker
        self.id: str | None = None
        self.state = JobState("NOT SUBMITTED", False, False)
        self.wanted_since_s = time.monotonic()
        self.sentinel, self._end = os.pipe()
        self._release = release
        # Until when it may end by itself; None while it is wanted.
        self.released_until_s: float | None = None
        self.submit_at_s = 0.0

    def __str__(self) -> str:
        return f"job {self.id}: {self.state}" if self.id else f"no job: {self.state}"

    @property
    def exitcode(self) -> int | None:
        """None while it may live, 0 where it has completed, otherwise 1."""
        if not self.state.is_over:
            return None
        return 0 if self.state.word == "COMPLETED" else 1

    def join(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def terminate(self) -> None:
        """Nobody wants it any more: it is cancelled, if it does not end by itself soon."""
        self._release(self)

    kill = terminate

    def become(self, state: JobState) -> bool:
        """Takes in what the scheduler says; whether that is news."""
        if state == self.state:
            return False
        was_over, self.state = self.state.is_over, state
        if state.is_over and not was_over:
            os.close(self._end)
        return True

    def close(self) -> None:
        """Gives its descriptors back."""
        if not self.state.is_over:
            os.close(self._end)
        os.close(self.sentinel)


class JobWatcher:
    """The jobs of all workers of one run. A context manager: all of them have been cancelled, or are over, at its end.

    Args:
        scheduler: where jobs are submitted. Used from the thread of the first `start`, afterwards by the watcher.
        num_workers: how many jobs the first `start` submits.
        log: the log file of a worker.
        grace_s: how long a job that has run may take to end by itself when it is not wanted any more.
        say: called with a line for the user, from any thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        num_workers: int,
        log: Callable[[int], Path],
        grace_s: float,
        say: Callable[[str], None],
    ):
        self._scheduler = scheduler
        self._num_workers = num_workers
        self._log = log
        self._grace_s = grace_s
        self._say = say
        # The newest job of each worker, and all there ever were.
        self._current: dict[int, JobHandle] = {}
        self._jobs: list[JobHandle] = []
        self._changed = threading.Condition()
        self._has_news = False
        self._is_closing = False
        self._queue_notice = ""
        self._queue_notice_s = 0.0
        # What the scheduler refused last, by what it was told to do.
        self._troubles: dict[str, str] = {}
        self._watcher = threading.Thread(target=self._watch, name="collectx-jobs", daemon=True)

    # --- in the trainer's thread ---

    def start(self, worker: int, life: int) -> JobHandle:
        """Returns the handle of a job that runs the worker; see `collectx.launcher.base.Launcher`. The first lives
        of all workers are submitted together, which blocks; the watcher submits replacements.

        Raises:
            LauncherError: the scheduler refused the first jobs.
        """
        if life == 0:
            if not self._current:
                self._submit_all()
            return self._current[worker]
        job = JobHandle(worker, self._release)
        with self._changed:
            self._current[worker] = job
            self._jobs.append(job)
            self._wake()
        return job

    def _submit_all(self) -> None:
        ids = self._scheduler.submit(range(self._num_workers))
        for worker, job_id in ids.items():
            job = self._current[worker] = JobHandle(worker, self._release)
            job.id = job_id
            self._jobs.append(job)
        first, last = ids[0], ids[self._num_workers - 1]
        self._say(f"workers are submitted: job {first}" + (f" to {last}" if last != first else ""))
        self._watcher.start()

    def describe(self, worker: int) -> str:
        """Names a worker in messages: its job, what became of it, its log, and the log's last line if it failed."""
        job, log = self._current.get(worker), self._log(worker)
        if job is None:
            return f"worker {worker} (log: {log})"
        end = ending(log, job.state.word == "FAILED") if job.exitcode else ""
        return f"worker {worker} ({job}; log: {log}{end})"

    def _release(self, job: JobHandle) -> None:
        with self._changed:
            if job.released_until_s is None:
                job.released_until_s = time.monotonic() + self._grace_s
                self._wake()

    def _wake(self) -> None:
        self._has_news = True
        self._changed.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all jobs: those that wait in the queue at once, those that run when they have not ended by themselves
        within `grace_s`, for which this waits. Idempotent."""
        for job in self._jobs:
            self._release(job)
        with self._changed:
            self._is_closing = True
            self._wake()
        if self._watcher.ident is not None:
            try:
                self._watcher.join()
            except BaseException:
                # A user who will not wait any longer.
                for job in self._jobs:
                    job.released_until_s = 0.0
                self._watcher.join()
                raise
        while self._jobs:
            self._jobs.pop().close()

    # --- in the watcher's thread ---

    def _watch(self) -> None:
        pause_s = _FIRST_POLL_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_news, _CLOSING_POLL_S if self._is_closing else pause_s)
                is_news, self._has_news = self._has_news, False
                jobs, is_closing = list(self._jobs), self._is_closing
            if not is_closing:
                is_news |= self._submit([job for job in jobs if job.id is None])
            is_news |= self._poll([job for job in jobs if job.id is not None and not job.state.is_over])
            self._cancel([job for job in jobs if job.released_until_s is not None and not job.state.is_over])
            if is_closing and all(job.state.is_over for job in jobs):
                return
            if not is_closing:
                self._tell_queue()
            pause_s = _FIRST_POLL_S if is_news else min(1.5 * pause_s, _LAST_POLL_S)

    def _submit(self, jobs: Sequence[JobHandle]) -> bool:
        for job in jobs:
            if job.released_until_s is not None or time.monotonic() < job.submit_at_s:
                continue
            try:
                job.id = self._scheduler.submit([job.worker])[job.worker]
                self._troubles.pop("submit", None)
            except Exception as error:
                job.submit_at_s = time.monotonic() + _RETRY_S
                job.become(JobState("NOT SUBMITTED", False, False, _trouble(error)))
                self._complain("submit", error)
        return any(job.id is not None for job in jobs)

    def _poll(self, jobs: Sequence[JobHandle]) -> bool:
        if not jobs:
            return False
        try:
            states = self._scheduler.states([str(job.id) for job in jobs])
        except Exception as error:
            self._complain("ask", error)
            return False
        self._troubles.pop("ask", None)
        gone = JobState("GONE", True, True, "cancelled in the queue, or forgotten since it ended")
        news = [job.become(states.get(str(job.id), gone)) for job in jobs]
        return any(news)

    def _cancel(self, jobs: Sequence[JobHandle]) -> None:
        """Cancels those of whom nothing can be waited for, and those whose time is over."""
        now_s = time.monotonic()
        due = [job for job in jobs if not job.state.has_started or now_s >= (job.released_until_s or 0.0)]
        try:
            if ids := [job.id for job in due if job.id is not None]:
                self._scheduler.cancel(ids)
        except Exception as error:
            self._complain("cancel", error)
            if not self._is_closing:
                return
        for job in due:
            job.become(JobState("CANCELLED", True, job.state.has_started, "by the trainer", job.state.node))

    def _complain(self, what: str, error: Exception) -> None:
        """Says what the scheduler refused, or how its answer could not be read, once: the watcher goes on."""
        text = _trouble(error)
        if text != self._troubles.get(what):
            self._troubles[what] = text
            self._say(text)

    def _tell_queue(self) -> None:
        """Says which workers wait in the queue, and why."""
        now_s = time.monotonic()
        waiting = [
            job
            for job in self._current.values()
            if not (job.state.has_started or job.state.is_over) and now_s >= job.wanted_since_s + _PATIENCE_S
        ]
        reasons: dict[str, list[str]] = {}
        for job in waiting:
            reasons.setdefault(str(job.state), []).append(str(job.worker))
        notice = "; ".join(f"worker {', '.join(workers)}: {state}" for state, workers in reasons.items())
        if notice and notice != self._queue_notice and now_s >= self._queue_notice_s:
            self._queue_notice, self._queue_notice_s = notice, now_s + _NOTICE_S
            self._say(f"{len(waiting)} of {self._num_workers} workers wait in the queue: {notice}")


def _trouble(error: Exception) -> str:
    return str(error) if isinstance(error, LauncherError) else f"the scheduler's answer cannot be read: {error!r}"


def ending(log: Path, has_failed: bool = True) -> str:
    """The last line of a log that says something, to stand behind its name: an exit code says nothing that is not
    known. A missing log is a hint only where the job itself has failed; SLURM or the job's shell begins each log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return _NO_LOG if has_failed else ""
    last = next((line.strip() for line in reversed(lines) if line.strip() and "exit code" not in line.lower()), "")
    return f", which ends: {last}" if last else ""
