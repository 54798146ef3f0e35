"""Workers as jobs of a scheduler: submitted, watched until they end, cancelled when no longer needed.

    start(worker, ...) -> handle    in the trainer's thread; only the very first call waits for the scheduler
    watcher thread                  submits replacements, polls all jobs, cancels

The watcher thread makes the slow calls, so batches do not wait for the scheduler.

`launcher=submitit`: the trainer runs where it was started, and every worker is a SLURM job that it submits.

    <run>/jobs/worker.sh     the script of all workers: one task of a job array; its argument is the first worker
    <run>/jobs/workers.txt   the job of each worker, and the worker's index
    <run>/jobs/ended.17_3    SLURM ended job 17_3
    <run>/logs/worker-3.log  output of SLURM and of worker 3's job

SLURM does not requeue worker jobs: a requeued job would look for a trainer that has already replaced its worker. The
trainer submits a new job instead: with `launcher.requeue` after preemption and at the time limit, with
`collector.on_worker_failure=restart` after any loss.
"""

from __future__ import annotations

import itertools
import math
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.errors import LauncherError
from collectx.place.launcher import AnyHandle, Entry, Launcher, RemoteHandle
from collectx.place.slurm import JobFiles, commands
from collectx.place.slurm.commands import JobState
from collectx.transport.network.handshake import Endpoint
from collectx.transport.peer import Limit


class JobArray:
    """Submits the workers of one run as tasks of job arrays. Every call may block for seconds, and raises
    `LauncherError` if SLURM refuses.

    Args:
        cfg: the resources of one worker.
        files: the run folder. The constructor writes the script of the workers into it.
        command: the command of a worker, without its index.
    """

    def __init__(self, cfg: SubmititLauncherConfig, files: JobFiles, command: Sequence[str]):
        self._files = files
        self._largest: int | None = None
        begin = [
            "worker=$((SLURM_ARRAY_TASK_ID + $1))",
            f"run={shlex.quote(str(files.path))}",
            f'exec >>"{JobFiles(Path("$run")).worker_log("$worker")}" 2>&1 || exit 1',
        ]
        body = commands.body(cfg, [*commands.WITHOUT_REQUESTS, *command, '"$worker"'], **cfg.srun)
        files.jobs.mkdir(parents=True, exist_ok=True)
        files.worker_script.write_text("\n".join(["#!/bin/bash", *worker_header(cfg, files), *begin, *body, ""]))
        files.worker_jobs.unlink(missing_ok=True)

    def submit(self, workers: Sequence[int]) -> dict[int, str]:
        """Submits all of these workers, or none; returns the job of each worker, `<array>_<index>`. The index is the
        worker's, less a multiple of the largest array that SLURM allows."""
        self._largest = self._largest or commands.largest_array()
        jobs: dict[int, str] = {}
        try:
            for first, option in array_options(workers, self._largest):
                job = commands.submit(self._files.worker_script, option, arguments=[str(first)])
                jobs |= {worker: f"{job}_{worker - first}" for worker in workers if 0 <= worker - first < self._largest}
        except LauncherError as error:
            if not jobs:
                raise
            with suppress(LauncherError):
                commands.cancel(list(jobs.values()))
            reason = str(error).removesuffix(".")
            raise LauncherError(
                f"only {len(jobs)} of {len(workers)} workers could be submitted: {reason}. collectx cancelled "
                "their jobs."
            ) from error
        with open(self._files.worker_jobs, "a") as file:
            file.writelines(f"{job} {worker}\n" for worker, job in jobs.items())
        return jobs

    def is_ended_by_slurm(self, job: str, state: commands.JobState) -> bool:
        """Whether SLURM ends or ended a job that had not failed: by preemption, or at its time limit. A job that is
        COMPLETING has the reason TimeLimit."""
        is_by_slurm = state.word in ("PREEMPTED", "TIMEOUT") or state.reason == "TimeLimit"
        return is_by_slurm or self._files.note_of_end(job).exists()

    states = staticmethod(commands.states)
    cancel = staticmethod(commands.cancel)


def array_options(workers: Sequence[int], largest: int) -> Iterator[tuple[int, str]]:
    """Yields, for each array, the worker of index 0 and sbatch's option `--array`. SLURM's indices are below
    `largest`."""
    for first, group in itertools.groupby(sorted(workers), lambda worker: worker // largest * largest):
        yield first, f"--array={','.join(str(worker - first) for worker in group)}"


def worker_header(cfg: SubmititLauncherConfig, files: JobFiles) -> list[str]:
    """Returns the `#SBATCH` lines of the workers' script, see `JobArray`."""
    return commands.header(
        cfg,
        job_name=f"{files.path.name}-worker",
        output="/dev/null",  # the script redirects its output to the worker's log
        ntasks=1,
        cpus_per_task=cfg.num_threads,
        no_requeue=True,
    )


# The polling interval: short after a change, longer while nothing changes.
_FIRST_POLL_S = 1.0
_LAST_POLL_S = 10.0
_CLOSING_POLL_S = 0.5
# The interval between attempts to submit a refused replacement, until its `join_timeout` ends. At the end, cancelling
# jobs is tried for so long after their grace period.
_RETRY_S = 10.0
# How long workers wait in the queue before the user is told, and the minimum interval between two notices.
_PATIENCE_S = 4.0
_NOTICE_S = 15.0


_NEW = JobState("NOT SUBMITTED", False, False)


@dataclass(eq=False)
class Job:
    """The job of one process of a worker.

    Attributes:
        handle: the worker's handle; its exit code is 0 if the job has completed, otherwise 1.
        released_until_s: when the job's grace period ends, by `time.monotonic`; None while the job is needed.
    """

    worker: int
    handle: RemoteHandle
    id: str | None = None
    state: JobState = _NEW
    created_s: float = field(default_factory=time.monotonic)
    released_until_s: float | None = None
    submit_at_s: float = 0.0

    def update(self, state: JobState, id: str | None = None) -> bool:
        """Sets the state, and the id once it is submitted; returns whether the state has changed."""
        is_changed = state != self.state
        self.state, self.id = state, id or self.id
        self.handle.text = f"job {self.id}: {state}" if self.id else f"no job: {state}"
        self.handle.expects_log = state.word == "FAILED"
        if state.is_over:
            self.handle.finish(0 if state.word == "COMPLETED" else 1)
        return is_changed


class JobWatcher(Launcher):
    """Submits and watches the jobs of one run's workers.

    Args:
        scheduler: submits and cancels; used in the thread of the first `start`, then in the watcher thread.
        num_workers: how many jobs the first `start` submits.
        grace_s: seconds that a started job may take to end by itself when it is no longer needed.
    """

    def __init__(
        self,
        scheduler: JobArray,
        *,
        num_workers: int,
        log: Callable[[int], Path],
        grace_s: float,
        say: Callable[[str], None],
        announce: Callable[[Endpoint], None] | None = None,
        join_timeout: Limit | None = None,
        max_requeues: int = 0,
    ):
        super().__init__(log, announce, join_timeout)
        self.max_requeues = max_requeues
        self._scheduler = scheduler
        self._num_workers = num_workers
        self._grace_s = grace_s
        self._say = say
        self._jobs: dict[RemoteHandle, Job] = {}
        self._changed = threading.Condition()
        self._has_changed = False
        self._is_closing = False
        # When the watcher stops trying to cancel jobs, at the end.
        self._give_up_s = math.inf
        self._queue_notice, self._queue_notice_s = "", 0.0
        # The last error of each kind of call.
        self._errors: dict[str, str] = {}
        self._watcher = threading.Thread(target=self._watch, name="collectx-jobs", daemon=True)

    # --- in the trainer's thread ---

    def start(
        self, worker: int, entry: Entry, num_replaced: int = 0, previous: AnyHandle | None = None
    ) -> RemoteHandle:
        """Returns the handle of the worker's job; see `Launcher.start`. The first call submits the jobs of all workers,
        and blocks; the watcher submits replacements. Raises `LauncherError` if the scheduler refused the first jobs."""
        if num_replaced == 0:
            if not self._jobs:
                self._submit_all()
            return next(handle for handle, job in self._jobs.items() if job.worker == worker)
        with self._changing():
            return self._add(worker).handle

    def _add(self, worker: int) -> Job:
        handle = RemoteHandle(self._release)
        job = self._jobs[handle] = Job(worker, handle)
        job.update(job.state)
        return job

    def _submit_all(self) -> None:
        ids = self._scheduler.submit(range(self._num_workers))
        for worker, job_id in ids.items():
            job = self._add(worker)
            job.update(job.state, job_id)
        first, last = ids[0], ids[self._num_workers - 1]
        self._say(f"submitted the workers as {f'jobs {first} to {last}' if last != first else f'job {first}'}")
        self._watcher.start()

    def _release(self, handle: RemoteHandle, signum: int = signal.SIGTERM) -> None:
        """Cancels a job if it does not end by itself within the grace period."""
        with self._changing():
            job = self._jobs.get(handle)
            if job is not None and job.released_until_s is None:
                job.released_until_s = time.monotonic() + self._grace_s

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Wakes the watcher at the end of the block."""
        with self._changed:
            yield
            self._has_changed = True
            self._changed.notify()

    def close(self) -> None:
        """Ends all jobs: cancels pending jobs at once, and running jobs that do not end within `grace_s`. Blocks until
        all have ended. Idempotent."""
        for handle in self._jobs:
            self._release(handle)
        with self._changing():
            self._is_closing, self._give_up_s = True, time.monotonic() + self._grace_s + _RETRY_S
        if self._watcher.ident is not None:
            try:
                self._watcher.join()
            except BaseException:
                # A second Ctrl-C.
                self._give_up_s = 0.0
                for job in self._jobs.values():
                    job.released_until_s = 0.0
                self._watcher.join()
                raise
        self._jobs.clear()

    # --- in the watcher's thread ---

    def _watch(self) -> None:
        pause_s = _FIRST_POLL_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_changed, _CLOSING_POLL_S if self._is_closing else pause_s)
                is_changed, self._has_changed = self._has_changed, False
                jobs, is_closing = list(self._jobs.values()), self._is_closing
            if not is_closing:
                is_changed |= self._submit([job for job in jobs if job.id is None])
            is_changed |= self._poll([job for job in jobs if job.id is not None and not job.state.is_over])
            self._cancel([job for job in jobs if job.released_until_s is not None and not job.state.is_over])
            if is_closing and all(job.state.is_over for job in jobs):
                return
            if not is_closing:
                self._report_queue(jobs)
            pause_s = _FIRST_POLL_S if is_changed else min(1.5 * pause_s, _LAST_POLL_S)

    def _submit(self, jobs: Sequence[Job]) -> bool:
        for job in jobs:
            if job.released_until_s is not None or time.monotonic() < job.submit_at_s:
                continue
            try:
                job.update(job.state, self._scheduler.submit([job.worker])[job.worker])
                self._errors.pop("submit", None)
            except Exception as error:
                job.submit_at_s = time.monotonic() + _RETRY_S
                job.update(JobState("NOT SUBMITTED", False, False, _message(error)))
                self._report_error("submit", error)
        return any(job.id is not None for job in jobs)

    def _poll(self, jobs: Sequence[Job]) -> bool:
        if not jobs:
            return False
        try:
            states = self._scheduler.states([str(job.id) for job in jobs])
        except Exception as error:
            self._report_error("ask", error)
            return False
        self._errors.pop("ask", None)
        gone = JobState("GONE", True, True, "cancelled in the queue, or forgotten after its end")
        changes = [self._update(job, states.get(str(job.id), gone)) for job in jobs]
        return any(changes)

    def _update(self, job: Job, state: JobState) -> bool:
        is_ended = self._scheduler.is_ended_by_slurm(str(job.id), state)
        job.handle.ended_by = "SLURM" if is_ended else None
        return job.update(state)

    def _cancel(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs that have not started, and jobs whose grace period is over."""
        now_s = time.monotonic()
        due = [job for job in jobs if not job.state.has_started or now_s >= (job.released_until_s or 0.0)]
        try:
            if ids := [job.id for job in due if job.id is not None]:
                self._scheduler.cancel(ids)
        except Exception as error:
            self._report_error("cancel", error)
            if now_s < self._give_up_s:
                return
            self._say(f"these jobs may go on, because they could not be cancelled. Type: scancel {' '.join(ids)}")
        for job in due:
            job.update(JobState("CANCELLED", True, job.state.has_started, "by the trainer", job.state.node))

    def _report_error(self, call: str, error: Exception) -> None:
        """Reports an error of the scheduler, unless the last call of this kind failed with the same one."""
        text = _message(error)
        if text != self._errors.get(call):
            self._errors[call] = text
            self._say(text)

    def _report_queue(self, jobs: Sequence[Job]) -> None:
        """Reports which workers wait in the queue, and why."""
        now_s = time.monotonic()
        # A worker may have several waiting jobs: the newest one counts.
        waiting = {
            job.worker: job.state
            for job in jobs
            if job.state.is_waiting and job.released_until_s is None and now_s >= job.created_s + _PATIENCE_S
        }
        notice = "; ".join(commands.why_waiting(dict(sorted(waiting.items()))))
        if notice and notice != self._queue_notice and now_s >= self._queue_notice_s:
            self._queue_notice, self._queue_notice_s = notice, now_s + _NOTICE_S
            verb = "is" if len(waiting) == 1 else "are"
            self._say(f"{len(waiting)} of {self._num_workers} workers {verb} waiting in the queue: {notice}")


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, LauncherError) else f"the scheduler's answer cannot be read: {error!r}"
