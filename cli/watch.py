"""`collectx watch DIR`: follows a run, or the runs of a sweep, that another command has started, to their end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collectx.cli.arguments import Arguments, ask_which, subcommand, synopsis
from collectx.errors import ConfigError
from collectx.jobs.status import NamedRun, named_run, read_job, statuses
from collectx.jobs.watcher import Watcher, sigterm_raises
from collectx.run import RunFolder, Status
from collectx.run.folder import saved_config
from collectx.run.folder.layout import runs_below
from collectx.run.folder.result import exit_status
from collectx.run.terminal import printing

_USAGE = """\
collectx watch DIR: follow the run in DIR, or the runs of the sweep in DIR, until they end. For one run, it shows the
curves of return and throughput, and a row for the trainer and each worker; for several, a row for each run.
Ctrl-C stops watching; the runs keep going. To stop them: collectx cancel DIR.

Exit status: 0 the runs completed, 1 one failed, 130 one was interrupted or you left with Ctrl-C, 2 wrong usage."""


def _watch(arguments: Arguments) -> int:
    from collectx.cli.sweep import not_started  # imports Hydra, which cancel and logs do without

    runs = runs_of("watch", arguments.words, _USAGE)
    for run, status in zip(runs, statuses(runs), strict=True):
        if status.status is Status.UNKNOWN:
            printing.note(f"the status of {run.path} is unknown ({status.detail}), so watch follows its folder.")
    root = Path(arguments.words[0])
    is_sweep = _is_sweep(root)
    seen: set[Path] = set()

    def begun() -> list[tuple[NamedRun, str | None]]:
        """Returns the runs that have begun since the last call."""
        new = [run for run in (runs_below(root) if is_sweep else runs) if run.path not in seen]
        seen.update(run.path for run in new)
        return [(replace(named_run(run), name=run.name_below(root)), read_job(run)) for run in new]

    watcher = Watcher(begun(), is_owner=False, begun=begun, awaits=lambda: not_started(root) if is_sweep else ())
    with sigterm_raises():
        outcomes = watcher.watch()
    points = [(RunFolder(each.folder).name_below(root), each.folder) for each in outcomes]
    points += [(name, root / name) for name in (not_started(root) if is_sweep else ())]
    if len(points) > 1 and not watcher.is_detached:
        printing.print_sweep(
            root, points, {each.folder: each.status for each in outcomes}, saved_config.objective_of(runs[0])
        )
    return 130 if watcher.is_detached else exit_status(*(outcome.status for outcome in outcomes))


def runs_of(subcommand: str, words: Sequence[str], usage: str) -> list[RunFolder]:
    """Returns the runs in the folder that is the only word of a command line. The runs of a sweep may lie several
    levels below. `usage` is the subcommand's text of `--help`. Raises `ConfigError` if there is not one word, or no run
    in that folder."""
    if len(words) != 1:
        problem = f"name one folder, not {len(words)} ({', '.join(words)}). {synopsis(usage)}"
        raise ConfigError(problem if words else ask_which(usage))
    if not words[0]:
        raise ConfigError(f"the folder name is empty. For the current folder: collectx {subcommand} .")
    folder = Path(words[0])
    # Below other folders, such as outputs, are runs that do not belong together.
    runs = runs_below(folder) if _is_sweep(folder) else runs_below(folder, max_depth=1)
    if not runs:
        if not os.path.exists(folder):
            raise ConfigError(f"there is no folder '{words[0]}'. To list your runs: collectx status")
        what = "contains neither a run nor a sweep" if folder.is_dir() else "is a file, not a run folder"
        if _is_sweep(folder):
            what = "is a sweep that has not begun a run yet"
        raise ConfigError(f"'{words[0]}' {what}. To list your runs: collectx status")
    return runs


def _is_sweep(folder: Path) -> bool:
    """Whether Hydra wrote the file of a sweep there."""
    return os.path.isfile(folder / "multirun.yaml")


main = subcommand("watch", _watch, _USAGE)
