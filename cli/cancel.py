"""`collectx cancel DIR`: ends a run, or the runs of a sweep, and waits for their end."""

from __future__ import annotations

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.watch import runs_of
from collectx.jobs.cancel import cancel

_USAGE = """\
collectx cancel DIR [--now]: stop the run in DIR, or every run of the sweep in DIR, and wait until it has stopped.

The trainer finishes its batch, saves a checkpoint and stops, within checkpoint.grace_s; `collectx resume` continues the
run. --now stops it at once, like a second Ctrl-C or scancel. If the run has no SLURM job, use this command on the
host where it runs.

Exit status: 0 all runs stopped, 1 some did not stop in time, 2 wrong usage or a run on another host, 130 Ctrl-C."""


def _cancel(arguments: Arguments) -> int:
    may_end_all, have_ended = cancel(runs_of("cancel", arguments.words, _USAGE), "now" in arguments.flags)
    return int(not have_ended) if may_end_all else 2


main = subcommand("cancel", _cancel, _USAGE)
