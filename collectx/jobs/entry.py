"""`python -m collectx.jobs.entry [--wait S] [--worker INDEX] RUN`: the process of a job, trainer or worker.

    RUN             a run folder that contains `jobs/task.json`, on a file system that all nodes share
    --wait S        how long that file may take to appear, in seconds
    --worker INDEX  the worker's index; without it, srun's rank decides: 0 is the trainer, r is worker r - 1, or
                    learner r of several

Exit status: the run's (trainer), 0 after the trainer closed its workers, 1 for a worker that failed or found no
trainer, 2 for a wrong configuration.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

from collectx import hydra_state
from collectx.checkpoints import Checkpoints
from collectx.config.derived import num_workers_of
from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, JobEnded, LauncherError, WorkerDied, WorkerTimeout
from collectx.fork_server import start
from collectx.jobs.worker_jobs import JobSpec, announce_trainer, find_trainer, read_objects
from collectx.place import place_of
from collectx.place.local_launcher import leave_signals_to_trainer
from collectx.place.slurm import commands, requeue
from collectx.place.slurm.job import JobTasksLauncher, is_lost
from collectx.place.slurm.jobs import SlurmPlace
from collectx.process import end_forks_by, unbind_threads, until
from collectx.progress import telling_imports
from collectx.run.folder.events import EventLog
from collectx.run.folder.files import write_json
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import Result, Status, exit_status, interruption
from collectx.run.signals import ignore_requests
from collectx.user_objects import Sealed, UserObjects

_POLL_S = 0.25
_ASK_S = 5.0
# The errors of a worker whose node is lost. They may have other causes.
_SILENT_ENDS = {f"{kind.__module__}.{kind.__qualname__}" for kind in (WorkerDied, WorkerTimeout)}


def main(argv: Sequence[str]) -> int:
    """Runs the trainer or a worker to its end; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--worker", type=int)
    parser.add_argument("folder")
    arguments = parser.parse_args(argv)
    ignore_requests()
    unbind_threads(lambda text: print(f"note: {text}", file=sys.stderr))
    run_folder = RunFolder(arguments.folder)
    if arguments.worker is not None:
        signal.signal(signal.SIGTERM, lambda signum, frame: _end_job(run_folder))
        end_forks_by(signal.SIGTERM)
    if not _wait_for_spec(run_folder, arguments.wait):
        return 1
    spec = JobSpec.read(run_folder)
    if spec.token is not None:
        if requeue.num_requeues(os.environ):
            print(
                "SLURM requeued this job, but the trainer has already submitted another one for this worker", flush=True
            )
            return 1
        return _run_worker(
            spec.cfg, run_folder, arguments.worker, spec.token, read_objects(run_folder, arguments.worker)
        )
    token = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    rank = int(os.environ["SLURM_PROCID"]) if arguments.worker is None else arguments.worker + 1
    if rank == 0:
        return _run_trainer(spec, run_folder, token, arguments.folder)
    # SLURM signals all tasks of a job; a worker that ends would look like a failure.
    leave_signals_to_trainer(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    if spec.cfg.trainer.num_learners > 1:
        return _run_learner(spec, run_folder, rank, token)
    status = _run_worker(spec.cfg, run_folder, rank - 1, token)
    # Ranks of one MPI job wait for each other at their exit.
    if arguments.worker is None and status == 0 and not place_of(spec.cfg).has_ranks:
        _wait_for_trainer(spec.cfg, run_folder)
    return status


def _wait_for_spec(run_folder: RunFolder, timeout_s: float) -> bool:
    if until(run_folder.job_spec.exists, timeout_s, _POLL_S):
        return True
    print(
        f"found no trainer within {timeout_s:g} s (queue_timeout_s={timeout_s:g}): {run_folder.job_spec} does not "
        "exist. The trainer's job may be waiting in the queue, have failed before it created its collector, or use "
        "another file system.",
        file=sys.stderr,
    )
    return False


def _run_trainer(spec: JobSpec, run_folder: RunFolder, token: str, folder: str) -> int:
    """Runs the trainer of a job whose other tasks are workers; `folder` is the run folder's name in the script."""
    with telling_imports(repeats=True):
        hydra_state.adopt(spec.hydra, is_worker=False)
        from collectx.run.execution import execute
    cfg, slurm, place = spec.cfg, spec.cfg.launcher, place_of(spec.cfg)
    assert isinstance(slurm, SlurmLauncherConfig)
    assert isinstance(place, SlurmPlace)
    if requeue.num_requeues(os.environ):
        resume = "auto" if run_folder.has_checkpoint else "never"
        cfg = replace(cfg, run=replace(cfg.run, resume=resume))
    checkpoints = Checkpoints(run_folder.checkpoints)
    begun = max(map(checkpoints.number, checkpoints.all()), default=0) if cfg.run.resume == "auto" else 0
    _begin_mpi(cfg)
    others, first = place.other_tasks
    # The job's state must agree with the result, even if SLURM signals a run that has just ended.
    signal.signal(signal.SIGTERM, lambda signum, frame: _end_without_result(run_folder, signum))
    launcher = JobTasksLauncher(
        slurm,
        command=[slurm.python or sys.executable, "-u", "-m", "collectx.jobs.entry", str(run_folder.path), "--worker"],
        environment=os.environ,
        job_log=run_folder.log("job"),
        log_begin=int(run_folder.log_begin.read_text()),
        log=lambda index: run_folder.log(f"{others}-{first + index}"),
        run=folder,
        group=place.workers_part,
        announce=lambda endpoint: announce_trainer(run_folder, endpoint, token),
    )
    try:
        with closing(launcher):
            result = execute(cfg, run_folder.path, list(spec.argv), lambda show: nullcontext(launcher))
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    lost = _lost_node(result, launcher, cfg.trainer.num_learners) if slurm.requeue else ""
    if lost or (slurm.requeue and result.exit_reason == interruption(signal.SIGTERM)):
        idle = run_folder.idle_note(requeue.job_id(os.environ))
        if result.batches > begun:
            idle.unlink(missing_ok=True)
        if reason := requeue.requeue(slurm, os.environ, None if result.batches > begun else idle):
            print(f"collectx: {reason}", file=sys.stderr)
            result = replace(result, exit_reason=f"{result.exit_reason}: {reason}")
            write_json(run_folder.result, result.as_json())
        else:
            _report(run_folder, "requeued", lost or result.exit_reason)
    if result.exit_reason == interruption(signal.SIGINT):
        _cancel_job(run_folder)
    return exit_status(result.status)


def _run_learner(spec: JobSpec, run_folder: RunFolder, rank: int, token: str) -> int:
    """Runs another learner than the first one; returns the exit status, or exits with it."""
    with telling_imports(repeats=True):
        hydra_state.adopt(spec.hydra)
        start.preload()
        from collectx.run.execution import run_learner
    name = "collector.start_timeout_s"
    endpoint = find_trainer(run_folder, token, name, spec.cfg.collector.start_timeout_s)
    run_learner(spec.cfg, run_folder.path, rank, endpoint)
    return 0


def _cancel_job(run_folder: RunFolder) -> None:
    """Cancels this process's job, so that SLURM does not record it as failed. Does nothing if the run is a step of an
    allocation, without a batch script."""
    job = requeue.job_id(os.environ)
    if not run_folder.node_note(job).exists():
        return
    try:
        commands.cancel([job])
    except LauncherError as error:
        print(f"collectx: job {job} could not be cancelled: {error}", file=sys.stderr)


def _report(run_folder: RunFolder, name: str, reason: str) -> None:
    """Writes the event "requeued" or "cancelled", while SLURM is ending the job."""
    print(f"collectx: the job was {name}: {reason}", file=sys.stderr)
    with closing(EventLog(run_folder)) as events:
        events(name, reason=reason)


def _lost_node(result: Result, launcher: JobTasksLauncher, num_learners: int) -> str:
    """Returns the reason if a run failed because the node of another task is lost, otherwise "". Blocks until SLURM
    knows."""
    failure = result.failures[0] if result.status is Status.FAILED and result.failures else None
    # A worker that reported an error is on a live node, and so is a learner that reported the loss of its worker.
    if failure is None or failure.type not in _SILENT_ENDS or (failure.worker is None) != (num_learners > 1):
        return ""
    try:
        for index in range(num_learners - 1) if failure.worker is None else [failure.worker]:
            if is_lost(node := launcher.node_of(index)):
                return f"{node}, the node of {launcher.name(index)}, is lost"
    except LauncherError as error:
        print(f"collectx: {error}", file=sys.stderr)
    return ""


def _run_worker(
    cfg: RunConfig, run_folder: RunFolder, worker: int, token: str, objects: Sealed[UserObjects] | None = None
) -> int:
    """Runs a worker until the trainer closes it; returns the exit status. Redirects the output of this process to the
    worker's log in the run folder."""
    log = run_folder.worker_log(worker)
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    with telling_imports(repeats=True):
        import torch

        from collectx.worker.entry import run_remote_worker
    torch.set_num_threads(cfg.launcher.num_threads)

    is_nested = cfg.collector.num_workers_per_collector > 1
    start_nested = import_module("collectx.collector").start_collector if is_nested else None
    timeout_s = cfg.collector.start_timeout_s
    try:
        _begin_mpi(cfg)
        endpoint = find_trainer(run_folder, token, "collector.start_timeout_s", timeout_s)
        run_remote_worker(endpoint, worker, timeout_s, objects, start_nested)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _wait_for_trainer(cfg: RunConfig, run_folder: RunFolder) -> None:
    """Waits in an ended worker's task until the trainer ends, or SLURM notices that the trainer's node is lost."""
    assert isinstance(cfg.launcher, SlurmLauncherConfig)
    node = run_folder.node_note(requeue.job_id(os.environ))
    ended = run_folder.exit_status(os.environ["SLURM_JOB_ID"])
    # All workers of a run together ask SLURM every few seconds.
    period_s = _ASK_S * num_workers_of(cfg.collector)
    pause_s = random.uniform(0, period_s)
    while not until(lambda: not node.exists() or ended.exists(), pause_s, _POLL_S):
        pause_s = period_s
        try:
            host = node.read_text().strip()
            if end := requeue.end_after_loss(host, cfg.launcher, os.environ):
                _report(run_folder, end, f"{host}, the node of the trainer, is gone")
                return
        except LauncherError as error:
            print(f"collectx: {error}", file=sys.stderr)


def _begin_mpi(cfg: RunConfig) -> None:
    """Initialises MPI if srun started the tasks as ranks of one MPI job. The preflight check reports what is
    missing."""
    if place_of(cfg).has_ranks and "PMIX_NAMESPACE" in os.environ and find_spec("mpi4py") is not None:
        from collectx.transport.network.mpi import initialize_ranks

        initialize_ranks(cfg.collector.start_timeout_s, "collector.start_timeout_s")


def _end_without_result(run_folder: RunFolder, signum: int) -> None:
    """Handles a signal before and after a run: ends this process unless the result is written."""
    if not run_folder.result.exists():
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _end_job(run_folder: RunFolder) -> None:
    """Handles SIGTERM in a worker's job: raises `JobEnded`, which the worker's loop reports to the trainer. Also leaves
    a file that says so, for a worker that has not joined."""
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        with suppress(OSError):
            run_folder.note_of_end(requeue.job_id(os.environ)).touch()
    raise JobEnded(
        "SLURM is ending this worker's job (SIGTERM), because it was preempted, cancelled, or reached its time limit."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
