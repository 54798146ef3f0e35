"""`collectx logs DIR [ROLE] [-f]`: prints the logs of a run."""

from __future__ import annotations

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.watch import runs_of
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError
from collectx.jobs.logs import print_logs, roles
from collectx.run.terminal import printing

_USAGE = """\
collectx logs DIR [ROLE] [-f]: print one log of the run in DIR, or all logs, with the role before each line.

  ROLE           trainer (errors with tracebacks), job (output of SLURM and the trainer's job), worker-0, ...
  -f, --follow   keep printing new lines until the run ends

Exit status: 0 success, 2 wrong usage, 130 Ctrl-C."""


def _logs(arguments: Arguments) -> int:
    run, *others = runs_of("logs", arguments.words[:1], _USAGE)
    if others:
        raise ConfigError(f"logs: '{arguments.words[0]}' is a sweep. Name one of its runs, such as {run.path}.")
    if len(words := arguments.words[1:]) > 1:
        raise ConfigError(
            f"logs: name one role, such as {words[0]}, not {len(words)} ({', '.join(words)}), or none to see all logs."
        )
    role = words[0] if words else None
    if role is not None and role not in (known := roles(run)):
        raise ConfigError(f"logs: there is no role '{role}'{did_you_mean(role, known)}")
    if not print_logs(run, role, "follow" in arguments.flags):
        nothing = "there are no logs" if role is None else f"{role} has no log"
        printing.note(
            f"{nothing}, because nothing failed and no env printed anything. {run.path} contains {run.metrics.name} "
            f"(one line per batch), {run.events.name} (starts, failures, checkpoints) and {run.result.name} (how the "
            f"run ended). To see a summary: collectx watch {run.path}"
        )
    return 0


main = subcommand("logs", _logs, _USAGE)
