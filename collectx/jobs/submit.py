"""Submits runs as SLURM jobs, runs with equal resources as one job array, and watches them.

A run whose job is still queued or running is only watched. Called when Hydra has composed all
points of a sweep, or one run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shlex
import shutil
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from collectx.config.derived import num_tasks_of
from collectx.config.schema.launcher import SlurmLauncherConfig, SubmititDelayedLauncherConfig
from collectx.config.schema.run import RunConfig, as_dict
from collectx.errors import ConfigError, LauncherError
from collectx.jobs import steps
from collectx.jobs.status import Outcome, SubmittedRun, query_slurm, read_job, status_of_job, write_job
from collectx.jobs.watcher import Watcher, terminable
from collectx.launcher.slurm import commands
from collectx.launcher.slurm import script as slurm_script
from collectx.launcher.slurm.requeue import is_requeue_wanted
from collectx.run import Status, printing
from collectx.run.folder import RunFolder, locked
from collectx.run.rendezvous import JobSpec
from collectx.run.resumed import begin_submitted
from collectx.run.saved_config import config_text

# SLURM's default limit of array tasks (MaxArraySize) is 1001.
_LARGEST_ARRAY = 1000
# How long a worker may take to exit after collector.close_timeout_s.
_GRACE_S = 5.0


def run_jobs(runs: Sequence[SubmittedRun], argv: Sequence[str], sweep: Path | None, results: list[Outcome]) -> bool:
    """Submits runs, and watches them to their end, unless `launcher.wait=false`; adds to `results`. Returns whether
    jobs keep running when the command ends.

    Args:
        argv: the command line as typed, for the snapshot.
        sweep: the folder of the sweep that they belong to.

    Raises:
        ConfigError: SLURM refused all jobs (the message has its words), or a folder has a run in it; nothing was
            started.
        KeyboardInterrupt: Ctrl-C or SIGTERM before the jobs were watched; submitted jobs are cancelled.
    """
    submitted: dict[Path, str] = {}
    with terminable():
        try:
            return _submit_and_watch(runs, argv, sweep, results, submitted)
        except KeyboardInterrupt:
            _cancel(submitted)
            raise
        except ConfigError:
            for run in runs:
                if run.folder not in submitted:
                    _remove_traces(run)
            raise


def _submit_and_watch(
    runs: Sequence[SubmittedRun],
    argv: Sequence[str],
    sweep: Path | None,
    results: list[Outcome],
    submitted: dict[Path, str],
) -> bool:
    job = steps.job()
    runs = _with_requeue(runs, job is not None)
    unfinished = _unfinished(runs)
    missing = [run for run in runs if run.folder not in unfinished]
    if problems := [problem for run in missing for problem in _folder_problems(run)]:
        raise ConfigError(problems)
    inside = [run for run in missing if run.cfg.launcher.kind == "slurm"] if job else []
    if job and inside:
        steps.run_steps(inside, argv, job, _GRACE_S, results)
        if len(inside) == len(runs):
            return False
    try:
        refusals = _submit([run for run in missing if run not in inside], argv, submitted, unfinished.values())
    except Exception:
        _cancel(submitted)
        raise
    jobs = unfinished | submitted
    if refusals and not jobs:
        raise ConfigError(list(dict.fromkeys(refusals.values())))
    for run in runs:
        if run.folder in refusals:
            _remove_traces(run)
    for text in dict.fromkeys(refusals.values()):
        printing.note(f"not submitted: {text}")
    results += [Outcome(Status.FAILED, run.folder) for run in runs if run.folder in refusals]
    running = [run for run in runs if run.folder in jobs]
    watched = [run for run in running if _launcher(run).wait]
    is_detached = len(watched) < len(running)
    if watched:
        watcher = Watcher([(run, jobs[run.folder]) for run in watched])
        results += watcher.watch()
        is_detached = is_detached or watcher.is_detached
    if is_detached:
        root = running[0].folder if sweep is None else sweep.absolute()
        print(f"look in later: collectx status {shlex.quote(str(root))}", flush=True)
    return is_detached


def _with_requeue(runs: Sequence[SubmittedRun], is_inside: bool) -> list[SubmittedRun]:
    """The runs with `launcher.requeue` true or false; `is_inside` an allocation, null stands for false."""
    preempts = functools.cache(commands.preempts)
    decided = []
    for run in runs:
        launcher = _launcher(run)
        if is_inside and launcher.kind == "slurm":
            requeue = bool(launcher.requeue)
        else:
            requeue = is_requeue_wanted(launcher, preempts)
        cfg = dataclasses.replace(run.cfg, launcher=dataclasses.replace(launcher, requeue=requeue))
        decided.append(dataclasses.replace(run, cfg=cfg))
    return decided


def _cancel(submitted: dict[Path, str]) -> None:
    try:
        if submitted:
            commands.cancel(list(submitted.values()))
    except LauncherError as error:
        printing.error(f"not all of the jobs {', '.join(submitted.values())} were cancelled: {error}")


def _unfinished(runs: Sequence[SubmittedRun]) -> dict[Path, str]:
    """Returns the jobs of earlier submissions that have not ended, by run folder; prints a line for each.

    Raises:
        ConfigError: such a job has another configuration, or SLURM does not answer.
    """
    submitted = {run.folder: job for run in runs if (job := read_job(RunFolder(run.folder))) is not None}
    states = query_slurm(submitted.values()) if submitted else {}
    if isinstance(states, LauncherError):
        raise ConfigError([f"cannot tell whether earlier jobs still run: {states}"])
    unfinished = {}
    for run in runs:
        job, files = submitted.get(run.folder), RunFolder(run.folder)
        if job is None or (status := status_of_job(files, job, states)).has_ended:
            continue
        if not _has_same_config(files, run.cfg):
            raise ConfigError(
                [
                    f"job {job} has not ended and writes to {run.folder} with another configuration: "
                    "choose another folder."
                ]
            )
        unfinished[run.folder] = job
        printing.say(f"{run.name}: job {job} of an earlier submission is {status.status}")
        if run.cfg.run.overwrite:
            printing.note(
                f"{run.name}: run.overwrite=true does not replace a job that has not ended: this is the run of job "
                f"{job}. To replace it: collectx cancel {shlex.quote(str(run.folder))}, then this command again."
            )
    return unfinished


def _has_same_config(files: RunFolder, cfg: RunConfig) -> bool:
    try:
        return config_text(JobSpec.read(files).cfg) == config_text(cfg)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _folder_problems(run: SubmittedRun) -> Sequence[str]:
    """Reasons why the run's folder cannot be written to."""
    try:
        with locked(RunFolder(run.folder), run.cfg.run.overwrite or run.cfg.run.resume == "auto"):
            return ()
    except ConfigError as error:
        return error.problems


def _submit(
    runs: Sequence[SubmittedRun], argv: Sequence[str], jobs: dict[Path, str], unfinished: Collection[str]
) -> dict[Path, str]:
    """Submits all; adds to `jobs`. Returns the refusals by run folder. `unfinished` are jobs of the same sweep. Folders
    are begun when their jobs are accepted, which are held until then: a refusal leaves an earlier run as it was."""
    refusals: dict[Path, str] = {}
    lanes: dict[int | None, Lanes] = {}
    for group in _arrays(runs):
        limit = _launcher(group[0]).max_parallel
        lane = lanes.setdefault(limit, Lanes(limit, unfinished))
        script = _script_text(group, lane.before(len(group)))
        try:
            submitted = slurm_script.submit(_script_path(group), script, len(group))
        except LauncherError as error:
            refusals |= {run.folder: str(error) for run in group}
            continue
        jobs |= {run.folder: job for run, job in zip(group, submitted, strict=True)}
        lane.take(len(group), submitted[0].partition("_")[0])
        for run, job in zip(group, submitted, strict=True):
            files = RunFolder(run.folder)
            begin_submitted(run.cfg, files, list(argv))
            JobSpec(run.cfg, tuple(argv)).write(files)
            write_job(files, job)
            print(f"{run.name}: job {job}, {num_tasks_of(run.cfg)} tasks", flush=True)
        if not _launcher(group[0]).sbatch.get("hold"):
            commands.release(submitted)
    return refusals


def _remove_traces(run: SubmittedRun) -> None:
    """Leaves the folder of a refused run as it was before this command."""
    files = RunFolder(run.folder)
    shutil.rmtree(files.hydra, ignore_errors=True)
    for path, content in run.hydra_before.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    if not files.has_run:
        files.lock.unlink(missing_ok=True)
        with suppress(OSError):  # it has something else in it
            files.path.rmdir()


class Lanes:
    """Limits all arrays of a sweep together to `launcher.max_parallel` runs at the same time; SLURM limits each array
    alone. Each lane runs one run at a time. An array takes as many lanes as it runs tasks at the same time, and depends
    on the jobs that were in them before.

    Args:
        limit: number of lanes; None: no limit.
        unfinished: jobs of an earlier submission of the sweep.
    """

    def __init__(self, limit: int | None, unfinished: Collection[str]):
        self._lanes: deque[frozenset[str]] = deque([frozenset()] * (limit or 0))
        for job in unfinished if limit else ():
            self._lanes.append(self._lanes.popleft() | {job})

    def before(self, num_runs: int) -> frozenset[str]:
        """The jobs that must end before an array of `num_runs` runs starts."""
        return frozenset().union(*itertools.islice(self._lanes, num_runs))

    def take(self, num_runs: int, job: str) -> None:
        """Adds a submitted array of `num_runs` runs."""
        for _ in range(min(num_runs, len(self._lanes))):
            self._lanes.popleft()
            self._lanes.append(frozenset({job}))


def _script_text(group: Sequence[SubmittedRun], after: Collection[str]) -> str:
    """The script of runs with equal resources; `after` are jobs that must end before."""
    cfg, launcher = group[0].cfg, _launcher(group[0])
    survives_nodes = cfg.collector.on_worker_failure != "raise"
    grace_s = cfg.collector.close_timeout_s + _GRACE_S
    return slurm_script.script(
        [run.folder for run in group], launcher, num_tasks_of(cfg), survives_nodes, grace_s, after
    )


def _arrays(runs: Sequence[SubmittedRun]) -> Iterator[list[SubmittedRun]]:
    """Groups runs with equal resources."""
    equal: dict[str, list[SubmittedRun]] = {}
    for run in runs:
        collector = run.cfg.collector
        request = (
            as_dict(run.cfg.launcher),
            num_tasks_of(run.cfg),
            collector.on_worker_failure,
            collector.close_timeout_s,
        )
        equal.setdefault(json.dumps(request, sort_keys=True), []).append(run)
    for group in equal.values():
        largest = 1 if isinstance(_launcher(group[0]), SubmititDelayedLauncherConfig) else _LARGEST_ARRAY
        for start in range(0, len(group), largest):
            yield group[start : start + largest]


def _script_path(runs: Sequence[SubmittedRun]) -> Path:
    """The path of a new script; scripts of earlier submissions are kept."""
    if len(runs) == 1:
        return RunFolder(runs[0].folder).jobs / "run.sh"
    folder = runs[0].folder.parent / "jobs"
    number = 0
    while (path := folder / f"array-{number}.sh").exists():
        number += 1
    return path


def _launcher(run: SubmittedRun) -> SlurmLauncherConfig:
    assert isinstance(run.cfg.launcher, SlurmLauncherConfig)
    return run.cfg.launcher
