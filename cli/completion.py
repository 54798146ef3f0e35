"""Completes command lines in bash, zsh and fish, with Hydra's plugins: `eval "$(collectx -sc install=bash)"`, then
`collectx run env=<TAB>`.

Hydra completes groups, choices and keys. This module completes the subcommand, and hides it from Hydra.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Sequence

from collectx.cli import arguments
from collectx.config.registry import GROUPS
from collectx.errors import ConfigError


def main(argv: Sequence[str], subcommands: Iterable[str]) -> int:
    """Prints the answer to `install=SHELL`, `uninstall=SHELL` or `query=SHELL` (the line is COMP_LINE in the
    environment); returns the exit status."""
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
        return [flag for flag in arguments.names(subcommand) if flag.startswith(last)]
    if subcommand == "schema":
        return list(GROUPS)
    if subcommand == "docs":
        from collectx.cli.docs import pages

        return [name for name in pages() if name.startswith(last)]
    if subcommand == "list":
        from collectx.cli.compose import Composer

        return list(Composer(_config_dir(words[2:])).groups)
    if subcommand not in arguments.COMPOSING:
        return []
    # Hydra completes the last word of a command line without subcommand, with the keys of the chosen groups.
    chosen = [word for word in words[2:] if word.partition("=")[0] in (*GROUPS, "experiment") and "," not in word]
    os.environ["COMP_LINE"] = " ".join(["collectx", *chosen, last])
    with contextlib.redirect_stdout(io.StringIO()) as completions:
        arguments.call_hydra(["-sc", "query=bash"], config_dir=_config_dir(words[2:]), program="collectx")
    # Files with a leading underscore are bases of others, not choices.
    return [word for word in completions.getvalue().split() if "=_" not in word]


def _config_dir(words: Sequence[str]) -> str | None:
    """Returns the value of `--config-dir`; None without one, or if the command line is incomplete."""
    try:
        folder = arguments.split(words).config_dir
    except ConfigError:
        return None
    return folder if folder is not None and os.path.isdir(folder) else None
