"""`collectx status [DIR]`: the status of a run, or of runs and sweeps, from their folders and from SLURM."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.cli import output
from collectx.cli.arguments import Arguments, run_subcommand
from collectx.errors import DamagedFile, LauncherError

if TYPE_CHECKING:
    from collectx.run.folder import RunFolder

_USAGE = """\
collectx status [DIR]: the status of the run in DIR, or of the runs and the points of sweeps below DIR; without DIR, of
the newest runs in outputs. For runs that are jobs it asks SLURM (squeue, then sacct where there is accounting).

  completed, failed, interrupted   the run has ended
  queued, running                  SLURM reports so; without SLURM, its process is running on this host
  unknown                          this host cannot tell; the reason is printed
  damaged                          a file of its folder cannot be read

Exit status: 0 the status is known, 2 there is no run below DIR, or DIR is damaged."""

_OUTPUTS = Path("outputs")
# Runs that are shown without DIR.
_NUM_NEWEST = 10
# Folders between a folder and the runs below it: outputs, date, sweep, point.
_MAX_DEPTH = 4


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(argv, _USAGE, _status)


def _status(arguments: Arguments) -> int:
    if len(arguments.words) > 1:
        return output.usage_error(f"status takes one folder, got {len(arguments.words)}.\n{_USAGE}")
    if arguments.words and not arguments.words[0]:
        return output.usage_error("status: the name of the folder is empty; . is the current one.")
    root = Path(arguments.words[0]) if arguments.words else _OUTPUTS
    folders = _runs_below(root)
    if not folders:
        reason = "there is no run in it or below it" if root.is_dir() else "no such folder"
        return output.usage_error(f"status: {root}: {reason}.")
    if arguments.words:
        return _show(root, folders)
    newest = sorted(folders, key=lambda folder: (folder / "snapshot").stat().st_mtime)[-_NUM_NEWEST:]
    status = _show(root, newest, is_brief=True)
    if len(newest) < len(folders):
        output.note(f"the newest {len(newest)} of {len(folders)} runs: collectx status {root} shows all.")
    return status


def _runs_below(root: Path) -> list[Path]:
    """The run folders at most `_MAX_DEPTH` levels below `root`, or `root` itself."""
    found, folders = [], [root]
    for _ in range(_MAX_DEPTH + 1):
        found += [folder for folder in folders if (folder / "snapshot").is_dir()]
        inner = (path for folder in folders if folder not in found for path in folder.glob("[!.]*"))
        folders = [path for path in inner if path.is_dir()]
    return sorted(found)


def runs_in(root: Path) -> list[Path]:
    """Returns `root`, if it is a run folder, otherwise the run folders in it."""
    if (root / "snapshot").is_dir():
        return [root]
    return sorted(path.parent for path in root.glob("*/snapshot"))


def _show(root: Path, folders: Sequence[Path], is_brief: bool = False) -> int:
    """Prints the status of each run, and what is known about it, or only its first line; returns the exit status."""
    from collectx.cli import run_status
    from collectx.run import Status
    from collectx.run.folder import RunFolder

    runs = [RunFolder(folder) for folder in folders]
    jobs = {run.path: run_status.read_job(run) for run in runs}
    submitted = [job for job in jobs.values() if job is not None]
    states: run_status.JobStates = LauncherError("it has no squeue")
    if submitted and shutil.which("squeue") is not None:
        states = run_status.query_slurm(submitted)
    if submitted and isinstance(states, LauncherError):
        output.note(f"SLURM cannot be asked on this machine ({states}): the status is that of the folders.")
    rows, details = [], []
    for run, folder in zip(runs, folders, strict=True):
        name = run.path.name if folder == root else str(folder.relative_to(root))
        job = jobs[run.path]
        try:
            status = run_status.status_of(run, job, states)
            numbers = run.read_result() or _numbers(run) or {}
            cells = output.cells(name, numbers or None, status.status)
        except DamagedFile as error:
            if folder == root:
                return output.usage_error(f"status: {error}")
            status, numbers = run_status.RunStatus(Status.DAMAGED, str(error)), {}
            cells = output.cells(name, None, Status.DAMAGED)
        rows.append((cells[0], status.status, *cells[2:], job or ""))
        if status.detail:
            lines = status.detail.splitlines()
            details += [f"{name}: {lines[0]}\n", *(f"{line}\n" for line in ([] if is_brief else lines[1:]))]
        if status.status is Status.RUNNING:
            details += [f"{name}: {line}\n" for line in run_status.waiting_workers(run)]
        if status.status is Status.RUNNING and (taking_part := numbers.get("taking_part")) is not None:
            details.append(f"{name}: {taking_part[0]} of {taking_part[1]} workers take part\n")
    output.print_table(rows, (*output.COLUMNS, "job"))
    output.say("".join(details) + f"folder: {root}")
    return 0


def _numbers(run: RunFolder) -> dict[str, Any] | None:
    """The numbers of a run without a result; None before its first batch."""
    from collectx.run.statistics import MetricsTail

    numbers = MetricsTail(run.metrics, -1)
    if not numbers.update():
        return None
    names = ("frames", "frames_per_s", "mean_return", "taking_part")
    return {name: getattr(numbers, name) for name in names}
