"""Completion for bash, zsh and fish by Hydra's plugins: `eval "$(collectx -sc install=bash)"`, then `collectx run
env=<TAB>`.

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

# Flags of subcommands beside Hydra's.
_FLAGS = {
    **{"cancel": ["--now"], "logs": ["--follow"], "list": ["--verbose"]},
    **{"reproduce": ["--trust"], "resume": ["--trust"]},
}


def main(argv: Sequence[str], subcommands: Iterable[str]) -> int:
    """Answers `install=SHELL`, `uninstall=SHELL` and `query=SHELL` (with COMP_LINE in the environment)."""
    command, _, shell = " ".join(argv).partition("=")
    if command != "query":
        # Hydra puts the name of the program into the function that it installs.
        arguments.call_hydra(["-sc", *argv], program="collectx")
        return 0
    print(("\n" if shell == "fish" else " ").join(_candidates(os.environ.get("COMP_LINE", ""), subcommands)))
    return 0


def _candidates(line: str, subcommands: Iterable[str]) -> list[str]:
    words = line.split()
    last = words.pop() if line[-1:] not in ("", " ") else ""
    if len(words) < 2:
        return [name for name in subcommands if name.startswith(last)]
    subcommand = words[1]
    if last.startswith("-"):
        hydras = arguments.names() if subcommand in ("run", "reproduce", "resume") else []
        return [flag for flag in (*hydras, *_FLAGS.get(subcommand, ())) if flag.startswith(last)]
    if subcommand == "schema":
        return list(GROUPS)
    if subcommand == "list":
        from collectx.cli.compose import Composer

        return list(Composer(_config_dir(line)).groups)
    if subcommand not in ("run", "reproduce", "resume"):
        return []
    # Hydra completes the last word of a command line without subcommand, with the keys of the chosen groups.
    chosen = [word for word in words[2:] if word.partition("=")[0] in (*GROUPS, "experiment") and "," not in word]
    os.environ["COMP_LINE"] = " ".join(["collectx", *chosen, last])
    with contextlib.redirect_stdout(io.StringIO()) as completions:
        arguments.call_hydra(["-sc", "query=bash"], config_dir=_config_dir(line), program="collectx")
    # Files with a leading underscore are bases of others, not choices.
    return [word for word in completions.getvalue().split() if "=_" not in word]


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
