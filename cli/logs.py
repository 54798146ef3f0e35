"""`collectx logs DIR [ROLE] [-f]`: prints the logs of a run."""

from __future__ import annotations

from collections.abc import Sequence

from collectx.cli import output
from collectx.cli.arguments import Arguments, run_subcommand
from collectx.cli.watch import runs_of
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError
from collectx.jobs.logs import paths, print_logs
from collectx.run import RunFolder

_USAGE = """\
collectx logs DIR [ROLE] [-f]: print the log of a role of the run in DIR, or of all roles, each line with its role.

  ROLE           trainer (errors with their tracebacks), job (output of SLURM and of the trainer's job), worker-0, ...
  -f, --follow   print what is added, until the run has ended

Exit status: 0, 2 wrong usage, 130 Ctrl-C."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(["--follow" if word == "-f" else word for word in argv], _USAGE, _logs, ["follow"])


def _logs(arguments: Arguments) -> int:
    follows = "follow" in arguments.flags
    runs = runs_of("logs", arguments.words[:1])
    if len(runs) > 1:
        raise ConfigError([f"logs: {arguments.words[0]} is a sweep: name one of its runs, such as {runs[0].path}."])
    if not print_logs(runs[0], _role(runs[0], arguments.words[1:], follows), follows):
        output.note(_where_output_is(runs[0]))
    return 0


def _where_output_is(run: RunFolder) -> str:
    return (
        f"{run.logs} is empty: it has failures, and what envs print. The output of a run is beside it: "
        f"{run.metrics.name} (every batch), {run.events.name} (starts, failures, checkpoints), {run.result.name} (the "
        f"end); collectx watch {run.path} shows it."
    )


def _role(run: RunFolder, words: Sequence[str], follows: bool) -> str | None:
    """The role of a command line; None where it has none.

    Raises:
        ConfigError: several roles, or one without a log.
    """
    if not words:
        return None
    known = [path.stem for path in paths(run)]
    unknown = [word for word in words if word not in (known or (words if follows else ()))]
    if wrong := unknown or list(words[1:]):
        have = f"{run.logs} has those of {', '.join(known)}" if known else f"{run.logs} is empty"
        raise ConfigError([f"logs: {wrong[0]}: no such log{did_you_mean(wrong[0], known)} {have}."])
    return words[0]
