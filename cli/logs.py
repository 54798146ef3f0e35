"""`collectx logs DIR [ROLE] [-f]`: prints the logs of a run."""

from __future__ import annotations

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.watch import runs_of
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError
from collectx.jobs.logs import print_logs, roles
from collectx.run.terminal import printing

_USAGE = """\
collectx logs DIR [ROLE] [-f]: print the log of a role of the run in DIR, or of all roles, each line with its role.

  ROLE           trainer (errors with their tracebacks), job (output of SLURM and of the trainer's job), worker-0, ...
  -f, --follow   print what is added, until the run has ended

Exit status: 0, 2 wrong usage, 130 Ctrl-C."""


def _logs(arguments: Arguments) -> int:
    run, *others = runs_of("logs", arguments.words[:1])
    if others:
        raise ConfigError(f"logs: {arguments.words[0]} is a sweep: name one of its runs, such as {run.path}.")
    if len(words := arguments.words[1:]) > 1:
        raise ConfigError(f"logs takes one role, got {len(words)}: {', '.join(words)}.")
    role = words[0] if words else None
    if role is not None and role not in (known := roles(run)):
        raise ConfigError(f"logs: {role}: no such role{did_you_mean(role, known)}")
    if not print_logs(run, role, "follow" in arguments.flags):
        nothing = f"{run.logs} is empty" if role is None else f"{role} has written no log"
        printing.note(
            f"{nothing}: logs have failures, and what envs print. The output of a run is in {run.path}: "
            f"{run.metrics.name} (every batch), {run.events.name} (starts, failures, checkpoints), {run.result.name} "
            f"(the end); collectx watch {run.path} shows it."
        )
    return 0


main = subcommand("logs", _logs, _USAGE)
