"""Submits runs as SLURM jobs, and watches them. Runs with equal resources are one job array. A run whose job is already
queued or running is only watched.

`launcher=slurm` inside an allocation (`salloc`): runs are steps of the allocation's job, one after another.

bash jobs/step.sh --- srun --jobid=17 --overlap --- task 0: the trainer
                                               \\-- task r: worker r - 1
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from collectx.config.problem import counted
from collectx.config.schema.launcher import SubmititDelayedLauncherConfig, SubmititLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, LauncherError
from collectx.jobs.cancel import end_jobs
from collectx.jobs.status import NamedRun, Outcome, begin_submitted, query_slurm, read_job, status_of_job, write_job
from collectx.jobs.watcher import Watcher, sigterm_raises
from collectx.jobs.worker_jobs import JobSpec
from collectx.place import place_of
from collectx.place.slurm import commands
from collectx.place.slurm import script as slurm_script
from collectx.place.slurm.commands import JobState
from collectx.place.slurm.job import start_step
from collectx.place.slurm.job_watcher import worker_header
from collectx.place.slurm.log_watcher import role_command
from collectx.place.slurm.requeue import is_requeue_wanted
from collectx.process import until
from collectx.run import Status
from collectx.run.folder.layout import RunFolder, locked
from collectx.run.folder.saved_config import config_text
from collectx.run.terminal import printing

_POLL_S = 0.1


def run_steps(runs: Sequence[NamedRun], argv: Sequence[str], job: str, results: list[Outcome]) -> None:
    """Runs the runs, one after another, as steps of the allocation `job`. Blocks until all have ended or one was
    interrupted. Appends the outcomes to `results`. Raises `ConfigError` if the allocation is too small; nothing was
    started."""
    if problems := [problem for run in runs for problem in _size_problems(run, job)]:
        raise ConfigError(*dict.fromkeys(problems))
    printing.note(
        f"you are inside the allocation of job {job}, so launcher=slurm runs steps of that job, with its partition, "
        "time and nodes. To submit a job of its own instead: env -u SLURM_JOB_ID collectx run ..."
    )
    for run in runs:
        step = _Step(run, job, argv)
        results += Watcher([(run, job)], step.states, step.cancel, step.cancel, may_leave=False).watch()
        step.join()
        if results[-1].status is Status.INTERRUPTED:
            break


class _Step:
    """One run as a step, which the constructor starts. `Watcher` watches it like a job."""

    def __init__(self, run: NamedRun, job: str, argv: Sequence[str]):
        launcher, run_folder = run.launcher, run.run_folder
        self._job = job
        self._grace_s = run.workers_grace_s
        self._exit_status = run_folder.exit_status(job)
        self._ended_s: float | None = None
        self._is_cancelled = False
        begin_submitted(run, argv)
        JobSpec(run.cfg, tuple(argv), hydra=run.hydra).write(run_folder)
        self._exit_status.unlink(missing_ok=True)
        run_folder.log_begin.write_text("0\n")
        options = {
            **launcher.srun,
            "jobid": job,
            # A shell of `srun --pty` is a step too, which occupies the cores.
            "overlap": True,
            "ntasks": run.place.num_tasks,
            "nodes": launcher.nodes,
            "cpus_per_task": run.place.cpus_per_task,
            "distribution": "block",
            "kill_on_bad_exit": 0,
            "no_kill": run.place.survives_nodes,
        }
        words = role_command(launcher.python or sys.executable, str(run_folder.path), run.place.other_tasks)
        script = run_folder.jobs / "step.sh"
        script.write_text("\n".join(["#!/bin/bash", *commands.body(launcher, words, **options), ""]))
        run_folder.log("job").unlink(missing_ok=True)
        self._step = start_step(lambda: ["bash", str(script)], run_folder.log("job"))

    def states(self, jobs: Iterable[str]) -> Mapping[str, JobState]:
        """Returns the state of the step by the id of its job. Does not block."""
        if self._step.exitcode is not None:
            word = "CANCELLED" if self._is_cancelled else "FAILED" if self._step.exitcode else "COMPLETED"
            return {self._job: JobState(word, True, True)}
        if self._is_cancelled or self._exit_status.exists():
            self._ended_s = self._ended_s or time.monotonic()
        if self._ended_s is not None and time.monotonic() > self._ended_s + self._grace_s:
            self._step.kill()
        return {self._job: JobState("RUNNING", False, True)}

    def join(self) -> None:
        """Waits until all tasks have ended, for at most the grace time, because the end of the allocation would kill
        them."""
        self._ended_s = self._ended_s or time.monotonic()
        until(lambda: self.states(())[self._job].is_over, math.inf, _POLL_S)

    def cancel(self, jobs: Iterable[str]) -> None:
        """Ends srun, which ends all tasks."""
        self._is_cancelled = True
        self._step.terminate()


def _size_problems(run: NamedRun, job: str) -> list[str]:
    text = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")
    cores, tasks, each = sum(commands.per_node(text)), run.place.num_tasks, run.place.cpus_per_task or 1
    if not cores or tasks * each <= cores:
        return []
    num_learners = run.cfg.trainer.num_learners
    option, whom = f"collector.num_workers={tasks - 1}", "worker and the trainer"
    if num_learners > 1:
        option, whom = f"trainer.num_learners={num_learners}", "learner and its workers"
    return [
        f"{option} needs {counted(tasks * each, 'core')}, {each} for each {whom}, but the allocation of job {job} has "
        f"{cores} (SLURM_JOB_CPUS_PER_NODE={text}). Use fewer workers or a larger allocation, or submit a job of its "
        "own: env -u SLURM_JOB_ID collectx run ..."
    ]


def run_jobs(runs: Sequence[NamedRun], argv: Sequence[str], sweep: Path | None, results: list[Outcome]) -> bool:
    """Submits runs and, unless `launcher.wait=false`, watches them; blocks until they have ended or the user leaves.
    Appends the outcomes to `results`. Returns whether jobs continue after the command. `sweep` is the folder of the
    sweep that contains these runs; None: a single run.

    Raises:
        ConfigError: SLURM refused all jobs (the message quotes SLURM), or a folder already contains a run. Nothing was
            started.
        KeyboardInterrupt: Ctrl-C or SIGTERM before the jobs were watched; submitted jobs are cancelled.
    """
    submitted: dict[Path, str] = {}
    with sigterm_raises():
        try:
            return _submit_and_watch(runs, argv, sweep, results, submitted)
        except KeyboardInterrupt:
            end_jobs(commands.cancel, list(submitted.values()))
            raise
        except ConfigError:
            _remove_traces(run for run in runs if run.folder not in submitted)
            raise


def _submit_and_watch(
    runs: Sequence[NamedRun],
    argv: Sequence[str],
    sweep: Path | None,
    results: list[Outcome],
    submitted: dict[Path, str],
) -> bool:
    allocation = os.environ.get("SLURM_JOB_ID")
    runs = with_requeue(runs, allocation is not None)
    unfinished = _unfinished(runs)
    missing = [run for run in runs if run.folder not in unfinished]
    if problems := [problem for run in missing for problem in _folder_problems(run)]:
        raise ConfigError(*problems)
    inside = [run for run in missing if place_of(run.cfg).can_be_step] if allocation else []
    if allocation and inside:
        run_steps(inside, argv, allocation, results)
        if len(inside) == len(runs):
            return False
    try:
        refusals = _submit([run for run in missing if run not in inside], argv, submitted, unfinished.values())
    except Exception:
        end_jobs(commands.cancel, list(submitted.values()))
        raise
    jobs = unfinished | submitted
    if refusals and not jobs:
        raise ConfigError(*dict.fromkeys(refusals.values()))
    printing.print_notes()
    refused = [run for run in runs if run.folder in refusals]
    _remove_traces(refused)
    for text in dict.fromkeys(refusals.values()):
        count = sum(each == text for each in refusals.values())
        verb = "was" if count == 1 else "were"
        again = "To submit the rest, repeat this command"
        if sweep is not None and not any(word.startswith("hydra.sweep.dir=") for word in argv):
            again += f" with hydra.sweep.dir={shlex.quote(str(sweep.absolute()))}"
        printing.note(f"{count} of {len(runs)} runs {verb} not submitted: {text.removesuffix('.')}. {again}")
    results += [Outcome(Status.FAILED, run.folder) for run in refused]
    running = [run for run in runs if run.folder in jobs]
    watched = [run for run in running if run.launcher.wait]
    is_detached = len(watched) < len(running)
    if watched:
        watcher = Watcher([(run, jobs[run.folder]) for run in watched])
        results += watcher.watch()
        is_detached = is_detached or watcher.is_detached
    if is_detached:
        root = running[0].folder if sweep is None else sweep.absolute()
        print(f"to see the status later: collectx status {shlex.quote(str(root))}", flush=True)
    return is_detached


def with_requeue(runs: Sequence[NamedRun], is_inside: bool) -> list[NamedRun]:
    """Returns the runs with true or false in place of `launcher.requeue=null`. A run that is a step of the command's
    allocation (`is_inside`) is not requeued by default. May ask SLURM."""
    preempts = functools.cache(commands.preempts)
    decided = []
    for run in runs:
        is_step = is_inside and place_of(run.cfg).can_be_step
        requeue = bool(run.launcher.requeue) if is_step else is_requeue_wanted(run.launcher, preempts)
        cfg = replace(run.cfg, launcher=replace(run.launcher, requeue=requeue))
        decided.append(replace(run, cfg=cfg))
    return decided


def _unfinished(runs: Sequence[NamedRun]) -> dict[Path, str]:
    """Returns unfinished jobs of earlier submissions by run folder; prints a line for each."""
    submitted = {run.folder: job for run in runs if (job := read_job(run.run_folder)) is not None}
    states = query_slurm(submitted.values())
    if isinstance(states, LauncherError):
        raise ConfigError(f"cannot tell whether earlier jobs are still running: {states}")
    unfinished = {}
    for run in runs:
        job = submitted.get(run.folder)
        if job is None or (status := status_of_job(run.run_folder, job, states)).has_ended:
            continue
        if not _has_same_config(run.run_folder, run.cfg):
            text = f"job {job} has not ended, and writes to {run.folder} with another configuration"
            raise ConfigError(f"{text}. Cancel it with `scancel {job}`, or choose another folder with hydra.run.dir.")
        unfinished[run.folder] = job
        printing.say(f"{run.name}: job {job} of an earlier submission is {status.status}")
        if run.cfg.run.overwrite:
            printing.note(
                f"{run.name}: run.overwrite=true does not replace job {job}, which has not ended. To replace it, "
                f"cancel it (collectx cancel {shlex.quote(str(run.folder))}), then repeat this command."
            )
    return unfinished


def _has_same_config(run_folder: RunFolder, cfg: RunConfig) -> bool:
    try:
        return config_text(JobSpec.read(run_folder).cfg) == config_text(cfg)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _folder_problems(run: NamedRun) -> Sequence[str]:
    try:
        with locked(run.run_folder, run.cfg.run.overwrite or run.cfg.run.resume == "auto"):
            return ()
    except ConfigError as error:
        return error.problems


def _submit(
    runs: Sequence[NamedRun], argv: Sequence[str], jobs: dict[Path, str], unfinished: Collection[str]
) -> dict[Path, str]:
    """Submits all runs; adds their jobs to `jobs`, and returns SLURM's refusals, both by run folder. A job is held
    until its folder is begun, so a refusal leaves an earlier run unchanged. At the user's limit of jobs, this submits
    as many as SLURM allows. `unfinished` are jobs of the same sweep."""
    refusals: dict[Path, str] = {}
    limits: dict[int | None, ParallelLimit] = {}
    groups = deque(arrays(runs))
    while groups:
        group = groups.popleft()
        launcher = group[0].launcher
        limit = limits.setdefault(launcher.max_parallel, ParallelLimit(launcher.max_parallel, unfinished))
        try:
            script = script_text(group, limit.before(len(group)))
            submitted = slurm_script.submit(_script_path(group), script, len(group))
        except LauncherError as error:
            is_limit, half = isinstance(error, commands.TooManyJobs), len(group) // 2
            if is_limit and half:  # SLURM refuses an array as a whole
                groups.extendleft((group[half:], group[:half]))
                continue
            refused = [*group, *itertools.chain(*groups)] if is_limit else group
            refusals |= {run.folder: str(error) for run in refused}
            if is_limit:
                break
            continue
        jobs |= {run.folder: job for run, job in zip(group, submitted, strict=True)}
        limit.add(len(group), submitted[0].partition("_")[0])
        for run, job in zip(group, submitted, strict=True):
            begin_submitted(run, argv)
            JobSpec(run.cfg, tuple(argv), hydra=run.hydra).write(run.run_folder)
            write_job(run.run_folder, job)
            print(f"{run.name}: job {job}, {run.place.num_tasks} tasks", flush=True)
        if not launcher.sbatch.get("hold"):
            commands.release(submitted)
    return refusals


def _remove_traces(runs: Iterable[NamedRun]) -> None:
    """Removes Hydra's files from the folders of refused runs, unless they contain an earlier run."""
    for run_folder in (run.run_folder for run in runs):
        if not run_folder.has_run:
            shutil.rmtree(run_folder.hydra, ignore_errors=True)
            run_folder.lock.unlink(missing_ok=True)
            with suppress(OSError):  # it contains other files
                run_folder.path.rmdir()


class ParallelLimit:
    """Limits all arrays of a sweep together to `launcher.max_parallel` concurrent runs, as SLURM limits only each
    array. There are that many places, for one run each. An array takes a place for each of its concurrent tasks, and
    waits for the jobs that hold these places. `limit` is the number of places; None: no limit. `unfinished` are the
    jobs of an earlier submission of the sweep."""

    def __init__(self, limit: int | None, unfinished: Collection[str]):
        # The jobs that each place waits for; the place that was taken first is in front.
        self._places: deque[frozenset[str]] = deque([frozenset()] * (limit or 0))
        for job in unfinished if limit else ():
            self._places.append(self._places.popleft() | {job})

    def before(self, num_runs: int) -> frozenset[str]:
        """Returns the jobs that must end before an array of `num_runs` runs starts."""
        return frozenset().union(*itertools.islice(self._places, num_runs))

    def add(self, num_runs: int, job: str) -> None:
        """Adds a submitted array of `num_runs` runs."""
        for _ in range(min(num_runs, len(self._places))):
            self._places.popleft()
            self._places.append(frozenset({job}))


def script_text(group: Sequence[NamedRun], after: Collection[str]) -> str:
    """Returns the script of runs with equal resources; the jobs `after` must end first."""
    run, folders = group[0], [run.folder for run in group]
    place, grace_s = run.place, run.workers_grace_s
    launcher = replace(run.launcher, cpus_per_task=place.cpus_per_task)
    return slurm_script.script(
        folders, launcher, place.num_tasks, place.survives_nodes, grace_s, after, place.other_tasks
    )


def headers(runs: Sequence[NamedRun]) -> list[list[str]]:
    """Returns the `#SBATCH` lines of every script of these runs; runs that are steps of an allocation have none."""
    if isinstance(runs[0].cfg.launcher, SubmititLauncherConfig):
        largest = commands.largest_array()
        return [
            [*worker_header(run.cfg.launcher, run.run_folder), f"#SBATCH --array=0-{size - 1}"]  # type: ignore[arg-type]
            for run in runs
            for first in range(0, run.cfg.collector.num_workers, largest)
            for size in [min(largest, run.cfg.collector.num_workers - first)]
        ]
    is_inside = "SLURM_JOB_ID" in os.environ
    jobs = [run for run in runs if place_of(run.cfg).is_job]
    if is_inside:
        jobs = [run for run in jobs if not place_of(run.cfg).can_be_step]
    texts = [script_text(group, ()) for group in arrays(with_requeue(jobs, is_inside))]
    return [[line for line in text.splitlines() if line.startswith("#SBATCH")] for text in texts]


def arrays(runs: Sequence[NamedRun]) -> Iterator[list[NamedRun]]:
    """Groups runs with equal resources. Asks SLURM for its maximum array size if a group has several runs."""
    equal: dict[str, list[NamedRun]] = {}
    for run in runs:
        collector = run.cfg.collector
        resources = [asdict(run.launcher), run.place.num_tasks, run.place.cpus_per_task]
        request = [*resources, collector.on_worker_failure, collector.close_timeout_s]
        equal.setdefault(json.dumps(request, sort_keys=True), []).append(run)
    for group in equal.values():
        has_arrays = len(group) > 1 and not isinstance(group[0].launcher, SubmititDelayedLauncherConfig)
        largest = commands.largest_array() if has_arrays else 1
        for start in range(0, len(group), largest):
            yield group[start : start + largest]


def _script_path(runs: Sequence[NamedRun]) -> Path:
    """Returns the path of a new script; scripts of earlier submissions are kept."""
    if len(runs) == 1:
        return runs[0].run_folder.jobs / "run.sh"
    paths = (runs[0].folder.parent / "jobs" / f"array-{number}.sh" for number in itertools.count())
    return next(path for path in paths if not path.exists())
