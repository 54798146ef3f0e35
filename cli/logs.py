"""`collectx logs DIR [ROLE] [-f]`: prints the logs of a run, and follows them until the run ends."""

from __future__ import annotations

from pathlib import Path

from collectx.cli.arguments import Arguments, subcommand
from collectx.cli.watch import runs_of
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError, printable
from collectx.jobs.status import named_run, statuses
from collectx.process import until
from collectx.run import RunFolder
from collectx.run.folder.files import LinesTail
from collectx.run.terminal import printing

_USAGE = """\
collectx logs DIR [ROLE] [-f]: print one log of the run in DIR, or all logs, with the role before each line.

  ROLE           trainer (errors with tracebacks), job (output of SLURM and the trainer's job), worker-0, learner-1, ...
  -f, --follow   keep printing new lines until the run ends

Exit status: 0 success, 2 wrong usage, 130 Ctrl-C."""


def _logs(arguments: Arguments) -> int:
    run, *others = runs_of("logs", arguments.words[:1], _USAGE)
    if others:
        raise ConfigError(f"'{arguments.words[0]}' is a sweep. Name one of its runs, such as {run.path}.")
    if len(words := arguments.words[1:]) > 1 and "-".join(words) in roles(run):
        raise ConfigError(f"write the role as one word: {'-'.join(words)}.")
    if len(words) == 2 and words[1].isdecimal():
        words = ["-".join(words)]
    if len(words) > 1:
        raise ConfigError(
            f"name one role, such as {words[0]}, not {len(words)} ({', '.join(words)}), or none to see all logs."
        )
    role = words[0] if words else None
    if role is not None and role not in (known := roles(run)):
        raise ConfigError(f"there is no role '{role}'{did_you_mean(role, known)}")
    if not print_logs(run, role, "follow" in arguments.flags):
        nothing = "there are no logs" if role is None else f"{role} has no log"
        files = {
            run.metrics: "one line per batch",
            run.events: "starts, failures, checkpoints",
            run.result: "how the run ended",
        }
        there = [f"{path.name} ({what})" for path, what in files.items() if path.exists()]
        printing.note(
            f"{nothing}, because nothing failed and no env printed anything. {run.path} contains "
            f"{', '.join(there) or 'no records yet'}. To see a summary: collectx watch {run.path}"
        )
    return 0


main = subcommand("logs", _logs, _USAGE)


_POLL_S = 0.25
# Seconds between two checks for the end of the run, which may ask SLURM.
_STATUS_S = 2.0


def roles(run: RunFolder) -> list[str]:
    """Returns the roles of a run, such as "trainer" and "worker-0", also those that have not written a log."""
    cfg = named_run(run).cfg
    workers = [f"worker-{worker}" for worker in range(cfg.collector.num_workers * cfg.collector.has_workers)]
    workers += [f"learner-{rank}" for rank in range(1, cfg.trainer.num_learners)]
    job = ["job"] if run.job_note.exists() else []
    return list(dict.fromkeys([*job, "trainer", *workers, *(path.stem for path in _paths(run, None))]))


def print_logs(run: RunFolder, role: str | None, follows: bool) -> bool:
    """Prints the log of a role or, with None, of all roles, with the role before each line. Returns whether it printed
    a line. With `follows`, prints new lines until the run ends."""
    tails: dict[Path, LinesTail] = {}
    has_printed = has_ended = False

    def print_new() -> bool:
        nonlocal has_printed
        for path in _paths(run, role):
            tail, prefix = tails.setdefault(path, LinesTail(path)), f"{path.stem} | " if role is None else ""
            while lines := tail.read_lines(is_last=has_ended)[0]:
                has_printed = True
                text = "\n".join(prefix + line.decode(errors="replace") for line in lines)
                print(printable(text), flush=True)  # as long as they are
        return has_ended

    while not has_ended:
        # The status is read first, so the run's last lines are printed.
        has_ended = not follows or statuses([run])[0].has_ended
        until(print_new, _STATUS_S, _POLL_S)
    return has_printed


def _paths(run: RunFolder, role: str | None) -> list[Path]:
    return sorted(run.logs.glob("*.log")) if role is None else [run.log(role)]
