"""`collectx logs DIR [ROLE] [-f]`: prints the logs of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from collectx.cli import attach, output
from collectx.cli.arguments import Arguments, run_subcommand
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError, printable
from collectx.run import RunFolder

_USAGE = """\
collectx logs DIR [ROLE] [-f]: print the log of a role of the run in DIR, or of all roles, each line with its role.

  ROLE           trainer (errors with their tracebacks), job (output of SLURM and of the trainer's job), worker-0, ...
  -f, --follow   print what is added, until the run has ended

Exit status: 0, 2 wrong usage, 130 Ctrl-C."""

_POLL_S = 0.25
# Seconds between two looks for the end of the run, which may ask SLURM.
_STATUS_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(["--follow" if word == "-f" else word for word in argv], _USAGE, _logs, ["follow"])


def _logs(arguments: Arguments) -> int:
    follows = "follow" in arguments.flags
    runs = attach.find("logs", arguments.words[:1])
    if len(runs) > 1:
        raise ConfigError([f"logs: {arguments.words[0]} is a sweep: name one of its runs, such as {runs[0].path}."])
    role = _role(runs[0], arguments.words[1:], follows)
    tails: dict[Path, _Tail] = {}
    while True:
        # The status comes first: what the run writes last is printed.
        has_ended = not follows or attach.statuses(runs)[0].has_ended
        until_s = time.monotonic() + _STATUS_S
        while True:
            for path in _paths(runs[0], role):
                tails.setdefault(path, _Tail(path, f"{path.stem} | " if role is None else "")).show(has_ended)
            if has_ended:
                if not any(tail.has_printed for tail in tails.values()):
                    output.note(_where_output_is(runs[0]))
                return 0
            if time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)


def _where_output_is(run: RunFolder) -> str:
    return (
        f"{run.logs} is empty: it has failures, and what envs print. The output of a run is beside it: "
        f"{run.metrics.name} (every batch), {run.events.name} (starts, failures, checkpoints), {run.result.name} (the "
        f"end); collectx watch {run.path} shows it."
    )


def _paths(run: RunFolder, role: str | None) -> list[Path]:
    return sorted(run.logs.glob("*.log")) if role is None else [run.log(role)]


def _role(run: RunFolder, words: Sequence[str], follows: bool) -> str | None:
    """The role of a command line; None where it has none.

    Raises:
        ConfigError: several roles, or one without a log.
    """
    if not words:
        return None
    known = [path.stem for path in _paths(run, None)]
    unknown = [word for word in words if word not in (known or (words if follows else ()))]
    if wrong := unknown or list(words[1:]):
        have = f"{run.logs} has those of {', '.join(known)}" if known else f"{run.logs} is empty"
        raise ConfigError([f"logs: {wrong[0]}: no such log{did_you_mean(wrong[0], known)} {have}."])
    return words[0]


class _Tail:
    """Prints the lines that are added to a file, each after `prefix`."""

    def __init__(self, path: Path, prefix: str):
        self._path = path
        self._prefix = prefix
        self._position = 0
        self._rest = b""
        self.has_printed = False

    def show(self, is_last: bool) -> None:
        """Prints the new complete lines; with `is_last`, also one without an end."""
        try:
            with open(self._path, "rb") as file:
                if file.seek(0, 2) < self._position:
                    self._position, self._rest = 0, b""
                file.seek(self._position)
                text = self._rest + file.read()
                self._position = file.tell()
        except FileNotFoundError:
            return
        lines = text.split(b"\n")
        self._rest = b"" if is_last else lines.pop()
        if lines and not lines[-1]:
            lines.pop()
        for line in lines:
            print(printable(self._prefix + line.decode(errors="replace")))
        if lines:
            self.has_printed = True
            print(end="", flush=True)
