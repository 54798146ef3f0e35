"""`collectx status DIR`: what became of a run or of the runs of a sweep, by their folders and by SLURM."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.cli import output
from collectx.cli.arguments import split
from collectx.errors import ConfigError, DamagedFile, LauncherError

if TYPE_CHECKING:
    from collectx.run.folder import RunFolder

_USAGE = """\
collectx status DIR: what became of the run in DIR, or of the points of the sweep in DIR. Asks SLURM about those that
are jobs (squeue, then sacct where there is accounting).

  completed, failed, interrupted   it has ended so
  queued, running                  SLURM says so just now; without SLURM, the process is seen on this host
  unknown                          nobody here can tell, and why
  damaged                          a file of its folder cannot be read

Exit status: 0 it could be told, 2 DIR is neither a run nor a sweep, or is damaged."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    try:
        arguments = split(argv)
    except ConfigError as error:
        return output.usage_error(" ".join(error.problems))
    if "help" in arguments.flags:
        print(_USAGE)
        return 0
    if len(arguments.words) != 1:
        return output.usage_error(f"status needs one folder, got {len(arguments.words)}.\n{_USAGE}")
    root = Path(arguments.words[0])
    folders = runs_in(root)
    if not folders:
        there = "holds neither a run nor runs" if root.is_dir() else "is no folder"
        return output.usage_error(f"status: {root} {there}.")
    return _show(root, folders)


def runs_in(root: Path) -> list[Path]:
    """`root`, if it is a run folder, otherwise the run folders in it."""
    if (root / "snapshot").is_dir():
        return [root]
    return sorted(path.parent for path in root.glob("*/snapshot"))


def _show(root: Path, folders: Sequence[Path]) -> int:
    """Prints what became of each; returns the exit status."""
    from collectx.cli import run_status
    from collectx.run.folder import RunFolder

    runs = [RunFolder(folder) for folder in folders]
    jobs = {run.path: run_status.read_job(run) for run in runs}
    named = [job for job in jobs.values() if job is not None]
    said = (
        run_status.query_slurm(named)
        if named and shutil.which("squeue") is not None
        else LauncherError("it has no squeue")
    )
    if named and isinstance(said, LauncherError):
        output.note(f"SLURM cannot be asked on this machine ({said}): only what the folders say.")
    rows, details = [], []
    for run in runs:
        job = jobs[run.path]
        try:
            found = run_status.status_here(run) if job is None else run_status.status_of(run, job, said)
            cells = output.cells(run.path.name, run.read_result() or _so_far(run), found.word)
        except DamagedFile as error:
            if run.path == root.absolute():
                return output.usage_error(f"status: {error}")
            found, cells = run_status.RunStatus("damaged", str(error)), output.cells(run.path.name, None, "damaged")
        rows.append((cells[0], found.word, *cells[2:], job or ""))
        if found.detail:
            details.append(f"{run.path.name}: {found.detail}\n")
    output.print_table(rows, (*output.COLUMNS, "job"))
    print("".join(details) + f"folder: {root}", flush=True)
    return 0


def _so_far(run: RunFolder) -> dict[str, Any] | None:
    """What a run without a result has delivered."""
    from collectx.run.statistics import MetricsTail

    numbers = MetricsTail(run.metrics, -1)
    if not numbers.update():
        return None
    return {"frames": numbers.frames, "frames_per_s": numbers.frames_per_s, "mean_return": numbers.mean_return}
