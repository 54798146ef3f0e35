"""Bash completion: `eval "$(collectx -sc install=bash)"`, then `collectx run env=<TAB>`.

Hydra completes groups, choices and keys; the subcommand is completed here and hidden from Hydra.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Iterable, Sequence

from collectx.cli import arguments
from collectx.config.registry import GROUPS


def main(argv: Sequence[str], subcommands: Iterable[str]) -> int:
    """Answers `install=bash`, `uninstall=bash` and `query=bash` (with COMP_LINE in the environment)."""
    if list(argv) == ["query=bash"]:
        return _query(os.environ.get("COMP_LINE", ""), subcommands)
    _complete_with_hydra(argv, [])
    return 0


def _query(line: str, subcommands: Iterable[str]) -> int:
    words = line.split()
    starts_new = line.endswith(" ")
    if len(words) + starts_new <= 2:
        begun = words[1] if len(words) > 1 else ""
        print(" ".join(name for name in subcommands if name.startswith(begun)))
        return 0
    if words[1] == "schema":
        print(" ".join(GROUPS))
        return 0
    if words[1] == "list":
        from collectx.cli.compose import Composer

        print(" ".join(Composer(_config_dir(line)).groups))
        return 0
    last = "" if starts_new else words[-1]
    own = {"cancel": ["--now"], "logs": ["--follow"]}.get(words[1])
    if own is not None and last.startswith("-"):
        print(" ".join(flag for flag in own if flag.startswith(last)))
    if words[1] not in ("run", "reproduce", "resume"):
        return 0
    if last.startswith("-"):
        switches = ["trust"] if words[1] != "run" else []
        print(" ".join(flag for flag in arguments.names(switches) if flag.startswith(last)))
        return 0
    # Hydra completes the last word of a command line without subcommand.
    os.environ["COMP_LINE"] = f"{words[0]} {last}"
    config_dir = _config_dir(line)
    completions = io.StringIO()
    with contextlib.redirect_stdout(completions):
        _complete_with_hydra(["query=bash"], ["--config-dir", config_dir] if config_dir else [])
    # Files with a leading underscore are bases of others, not choices.
    print(" ".join(word for word in completions.getvalue().split() if "=_" not in word))
    return 0


def _config_dir(line: str) -> str | None:
    """The value of `--config-dir` in a command line that may still be incomplete."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    for index, word in enumerate(words):
        if word.startswith("--config-dir="):
            folder = word.partition("=")[2]
        elif word in ("--config-dir", "-cd") and index + 1 < len(words):
            folder = words[index + 1]
        else:
            continue
        return folder if os.path.isdir(folder) else None
    return None


def _complete_with_hydra(overrides: Sequence[str], flags: Sequence[str]) -> None:
    # Hydra puts the name of the program into the function that it installs.
    arguments.call_hydra(["collectx", "-sc", *overrides, *flags])
