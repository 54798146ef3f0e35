"""What the command line says about a configuration: problems and notes on stderr, in colour only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def wrong_usage(text: str) -> int:
    """Prints one sentence about the command line itself; returns the exit status."""
    print(f"collectx: {text}", file=sys.stderr)
    return 2


def wrong_configuration(problems: Sequence[str]) -> int:
    """Prints every problem; returns the exit status."""
    count = len(problems)
    head = f"{count} problems in the configuration, no worker was started:"
    if count == 1:
        head = "A problem in the configuration, no worker was started:"
    _print(head, "bold red")
    for problem in problems:
        first, *more = problem.splitlines()
        _print(f"  - {first}")
        for line in more:
            _print(f"    {line}")
    return 2


def failure(text: str) -> None:
    """Prints why the command fails after runs have ended."""
    _print(f"collectx: {text}", "bold red")


def note(text: str) -> None:
    """Prints something worth knowing that stops nothing."""
    _print(f"note: {text}", "yellow")


def _print(text: str, style: str = "") -> None:
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(text, style=style)
    else:
        print(text, file=sys.stderr)
