"""`collectx status [DIR...]`: the status of a run, or of runs and sweeps, from their folders and from SLURM."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from collectx.cli.arguments import Arguments, subcommand
from collectx.errors import ConfigError, DamagedFileError, LauncherError
from collectx.jobs.status import (
    JobStates,
    RunStatus,
    numbers_of,
    processes,
    query_slurm,
    read_job,
    status_of,
    waiting_workers,
)
from collectx.run import RunFolder, Status
from collectx.run.folder.layout import absolute, runs_below
from collectx.run.terminal import printing
from collectx.run.terminal.printing import COLUMNS, cells, print_table

_USAGE = """\
collectx status [DIR...]: list the runs in and below each DIR with their status; without DIR, the newest runs in
outputs and in the folders of the current one. The status of jobs comes from SLURM (squeue, then sacct if the cluster
keeps accounts).

  completed, failed, interrupted   the run has ended
  stopped, waiting                 its sweep ended it early, or will compare or continue it (hydra/sweeper=halving)
  not started                      a point of a sweep that has no run yet
  queued, running                  according to SLURM; without SLURM, its process runs on this host
  unknown                          cannot be determined from this host (the reason follows)
  damaged                          a file in its folder cannot be read

Exit status: 0 listed, 2 no run in or below DIR, or DIR is damaged."""

_OUTPUTS = Path("outputs")
# How many runs are shown without DIR, and how deep below the current folder they may be: at points of a sweep there.
_NUM_NEWEST = 10
_DEPTH_HERE = 2


def _status(arguments: Arguments) -> int:
    if "" in arguments.words:
        raise ConfigError("the folder name is empty. For the current folder: collectx status .")
    folders = [Path(word) for word in arguments.words] or [_OUTPUTS]
    found = [run for folder in folders for run in runs_below(folder)]
    if not arguments.words:
        here = runs_below(Path(), _DEPTH_HERE)
        found += here
        if any(not run.path.is_relative_to(absolute(_OUTPUTS)) for run in here):
            folders = [Path()]
        elif not found:
            raise ConfigError(
                "there are no runs here yet. To start one: collectx run. To list those of another folder: collectx "
                "status DIR"
            )
    runs = list({run.path: run for run in found}.values())
    # Names that a shell's * expands to may include files of a sweep, beside its runs.
    missing = [folder for folder in folders if not os.path.exists(folder)]
    if missing or not runs:
        what = f"folder '{missing[0]}'" if missing else f"run in or below '{folders[0]}'"
        raise ConfigError(f"there is no {what}. To list the runs here: collectx status")
    root = Path(os.path.commonpath([absolute(folder) for folder in folders]))
    if arguments.words:
        return _show(root, runs)
    newest = sorted(runs, key=lambda run: run.snapshot.stat().st_mtime)[-_NUM_NEWEST:]
    status = _show(root, newest, is_brief=True)
    if len(newest) < len(runs):
        where = shlex.quote(printing.typed(root))
        printing.note(f"showing the newest {len(newest)} of {len(runs)} runs. To see all: collectx status {where}")
    return status


def _show(root: Path, runs: Sequence[RunFolder], is_brief: bool = False) -> int:
    """Prints each run's status with its details, or only their first line; returns the exit status."""
    root = absolute(root)
    jobs = [read_job(run) for run in runs]
    submitted = [job for job in jobs if job is not None]
    states: JobStates = LauncherError("squeue is not on PATH")
    if shutil.which("squeue") is not None:
        states = query_slurm(submitted)
    if submitted and isinstance(states, LauncherError):
        printing.note(f"this machine cannot query SLURM ({states}), so the status is taken from the run folders.")
    rows, details = [], []
    stopped: list[tuple[int, int, Path]] = []
    for run, job in zip(runs, jobs, strict=True):
        is_root = run.path == root
        name = run.name_below(root)
        try:
            status, numbers = status_of(run, job, states), numbers_of(run)
        except DamagedFileError as error:
            if is_root:
                raise ConfigError(str(error)) from error
            status, numbers = RunStatus(Status.DAMAGED, str(error)), None
        rows.append((*cells(name, status.status, numbers), *([job or ""] if submitted else [])))
        lines = status.detail.splitlines()
        if lines:
            details += [f"{name}: {lines[0]}", *([] if is_brief else lines[1:])]
        if is_root and status.status in (Status.FAILED, Status.INTERRUPTED):
            from collectx.cli.resume import to_go_on  # imports Hydra

            details.append(to_go_on(run))
        if status.status is Status.STOPPED:
            rung = (numbers or {})["rung"]
            stopped.append((-rung["number"], rung["rank"], run.path))
        if status.status is Status.RUNNING:
            details += [f"{name}: {line}" for line in waiting_workers(run)]
            if is_root and (pids := processes(run)):
                details.append(f"{name}: process ids: {', '.join(f'{each} {pid}' for each, pid in pids.items())}")
            if (taking_part := (numbers or {}).get("taking_part")) is not None:
                details.append(f"{name}: {taking_part[0]} of {taking_part[1]} workers take part")
            if learners := (numbers or {}).get("learners"):
                workers, others = (", ".join(f"{each:.1f}" for each in times) for times in zip(*learners, strict=True))
                waits = f"they waited {workers} s for their workers, and {others} s for each other"
                details.append(f"{name}: {len(learners)} learners; in the newest batches, {waits}")
    if (root / "multirun.yaml").is_file():
        from collectx.cli.sweep import not_started  # imports Hydra

        rows += [(*cells(name, "not started", None), *[""] * bool(submitted)) for name in not_started(root)]
    print_table(rows, ("run", *COLUMNS[1:], *["job"] * bool(submitted)))
    if stopped:
        which = "a point that its sweep stopped, such as the best of them" if len(runs) > 1 else "this point alone"
        details.append(f"To go on with {which}: collectx resume {shlex.quote(printing.typed(min(stopped)[-1]))}")
    what = "run folder" if [run.path for run in runs] == [root] else "folder"
    printing.say("\n".join([*details, f"{what}: {printing.typed(root)}"]))
    return 0


main = subcommand("status", _status, _USAGE)
