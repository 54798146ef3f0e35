"""`collectx cancel DIR`: ends a run, or the runs of a sweep, and waits for their end."""

from __future__ import annotations

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.watch import runs_of
from collectx.jobs.cancel import cancel

_USAGE = """\
collectx cancel DIR [--now]: end the run in DIR, or all runs of the sweep in DIR, and wait until they have ended.

The trainer completes the batch, writes a checkpoint and ends, within checkpoint.grace_s; `collectx resume` continues
the run. --now ends it at once, as a second signal and scancel do. A run of this machine must be cancelled on its host.

Exit status: 0 all runs have ended, 1 not all in time, 2 wrong usage or one is on another host, 130 Ctrl-C."""


def _cancel(arguments: Arguments) -> int:
    may_end_all, have_ended = cancel(runs_of("cancel", arguments.words), "now" in arguments.flags)
    return int(not have_ended) if may_end_all else 2


main = subcommand("cancel", _cancel, _USAGE)
