"""`collectx status DIR`: the status of a run, or of the runs of a sweep, from their folders and from SLURM."""

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
collectx status DIR: the status of the run in DIR, or of the points of the sweep in DIR. For runs that are jobs it asks
SLURM (squeue, then sacct where there is accounting).

  completed, failed, interrupted   the run has ended
  queued, running                  SLURM reports so; without SLURM, its process is running on this host
  unknown                          this host cannot tell; the reason is printed
  damaged                          a file of its folder cannot be read

Exit status: 0 the status is known, 2 DIR is neither a run nor a sweep, or is damaged."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(argv, _USAGE, _status)


def _status(arguments: Arguments) -> int:
    if len(arguments.words) != 1:
        return output.usage_error(f"status needs one folder, got {len(arguments.words)}.\n{_USAGE}")
    if not arguments.words[0]:
        return output.usage_error("status: the name of the folder is empty; . is the current one.")
    root = Path(arguments.words[0])
    folders = runs_in(root)
    if not folders:
        reason = "holds neither a run nor runs" if root.is_dir() else "is no folder"
        return output.usage_error(f"status: {root} {reason}.")
    return _show(root, folders)


def runs_in(root: Path) -> list[Path]:
    """Returns `root`, if it is a run folder, otherwise the run folders in it."""
    if (root / "snapshot").is_dir():
        return [root]
    return sorted(path.parent for path in root.glob("*/snapshot"))


def _show(root: Path, folders: Sequence[Path]) -> int:
    """Prints the status of each run; returns the exit status."""
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
    for run in runs:
        job = jobs[run.path]
        try:
            status = run_status.status_of(run, job, states)
            numbers = run.read_result() or _numbers(run) or {}
            cells = output.cells(run.path.name, numbers or None, status.status)
        except DamagedFile as error:
            if run.path == root.absolute():
                return output.usage_error(f"status: {error}")
            status, numbers = run_status.RunStatus(Status.DAMAGED, str(error)), {}
            cells = output.cells(run.path.name, None, Status.DAMAGED)
        rows.append((cells[0], status.status, *cells[2:], job or ""))
        if status.detail:
            details.append(f"{run.path.name}: {status.detail}\n")
        if status.status is Status.RUNNING and (taking_part := numbers.get("taking_part")) is not None:
            details.append(f"{run.path.name}: {taking_part[0]} of {taking_part[1]} workers take part\n")
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
