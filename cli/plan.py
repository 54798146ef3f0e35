"""`collectx plan [overrides] [-m] [--json]`: what a run or a sweep would start, allocate, send, write and request."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from collectx.cli import run, sweep
from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.compose import Composed, Composer, folder_of
from collectx.config.schema.run import RunConfig
from collectx.errors import CollectxError, ConfigError
from collectx.jobs.status import NamedRun
from collectx.run.terminal import printing

_USAGE = """\
collectx plan [overrides] [-m] [flags]: show what `collectx run` with the same arguments would do, without starting it:
processes, cores, memory, bytes per batch, time, files, and the request to SLURM; with -m, the totals over all points.
plan creates one env in this process to read its spaces, steps it for a moment, and closes it.

  --json   as JSON, sizes in bytes

Exit status: 0 success, 1 failed, 2 wrong configuration or usage."""


def _plan(arguments: Arguments) -> int:
    composer = Composer(arguments.config_dir, arguments.config_name)
    checked = composer.check(arguments.words)
    prepared = run.prepare(composer, checked, arguments.is_multirun, _say_machine_problems)
    for text in checked.notes:
        printing.note(text)
    num_parallel: int | None = 1
    if isinstance(prepared, Composed):
        folder = Path(folder_of(prepared.node, "hydra.run.dir")).absolute()
        runs = [NamedRun(folder.name, folder, prepared.cfg)]
    elif prepared.points:
        root = Path(prepared.folder).absolute()
        named = zip(sweep.names([*prepared.points]), prepared.points.values(), strict=True)
        runs = [NamedRun(name, root / name, point.cfg) for name, point in named]
        num_parallel = 1 if prepared.is_ours else None
    else:
        raise ConfigError(
            "this sweep cannot be planned: its sweeper chooses points by the results of earlier ones. Plan a single "
            "point, without -m."
        )
    from collectx import plan

    try:
        planned = plan.plan(runs, num_parallel)
    except CollectxError as error:
        raise ConfigError(str(error)) from error
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(json.dumps(planned, indent=2) if "json" in arguments.flags else "\n".join(plan.lines(planned, columns)))
    return 0


def _say_machine_problems(cfg: RunConfig, shows_warnings: bool) -> list[str]:
    """Prints why this machine would refuse the run. A plan may be for another machine, so these are not problems."""
    if shows_warnings:
        for text in run.machine_problems(cfg, shows_warnings):
            printing.note(f"this run cannot start on this machine: {text}")
    return []


main = subcommand("plan", _plan, _USAGE, lists_problems=True)
