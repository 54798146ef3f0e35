"""`collectx watch DIR`: follows a run, or the runs of a sweep, that another command has started, to their end.

Also what `cancel` and `logs` share with it: the runs of a folder, and their statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from collectx.cli import output, run_status
from collectx.cli.arguments import Arguments, run_subcommand
from collectx.cli.compose import typed
from collectx.cli.run import exit_status
from collectx.cli.run_status import RunStatus, SubmittedRun
from collectx.cli.saved import read_snapshot
from collectx.cli.status import runs_in
from collectx.cli.watch import Watcher
from collectx.errors import ConfigError
from collectx.run import RunFolder, Status, resumed

_USAGE = """\
collectx watch DIR: follow the run in DIR, or the runs of the sweep in DIR, until they have ended, as the command shows
them that started them. Ctrl-C leaves and lets them run; `collectx cancel DIR` ends them.

Exit status: that of the runs: 0 completed, 1 failed, 130 interrupted, also where watch was left; 2 wrong usage."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(argv, _USAGE, _watch)


def _watch(arguments: Arguments) -> int:
    runs = find("watch", arguments.words)
    for run, status in zip(runs, statuses(runs), strict=True):
        if status.status is Status.UNKNOWN:
            output.note(f"{run.path}: {status.detail}; follows its folder.")
    watcher = Watcher([(submitted(run), run_status.read_job(run)) for run in runs], is_owner=False)
    outcomes = watcher.watch()
    return 130 if watcher.is_detached else exit_status([outcome.status for outcome in outcomes])


def find(subcommand: str, words: Sequence[str]) -> list[RunFolder]:
    """The runs in the folder that is the only word of a command line.

    Raises:
        ConfigError: there is not one word, or no run in that folder.
    """
    if len(words) != 1:
        raise ConfigError([f"{subcommand} needs one folder, got {len(words)}: collectx {subcommand} --help says more."])
    if not words[0]:
        raise ConfigError([f"{subcommand}: the name of the folder is empty; . is the current one."])
    folders = runs_in(Path(words[0]))
    if not folders:
        raise ConfigError([f"{subcommand}: {words[0]} is neither the folder of a run nor of a sweep."])
    return [RunFolder(folder) for folder in folders]


def statuses(runs: Sequence[RunFolder]) -> list[RunStatus]:
    """The status of each run. Asks SLURM if some are jobs."""
    jobs = [run_status.read_job(run) for run in runs]
    known = [job for job in jobs if job is not None]
    states: run_status.JobStates = run_status.query_slurm(known) if known else {}
    return [run_status.status_of(run, job, states) for run, job in zip(runs, jobs, strict=True)]


def submitted(run: RunFolder) -> SubmittedRun:
    """A run with the configuration that it was begun or resumed with last.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    cfg, problems = typed(OmegaConf.create(read_snapshot(run, resumed.newest_config)))
    if problems:
        raise ConfigError(problems)
    return SubmittedRun(run.path.name, run.path, cfg)
