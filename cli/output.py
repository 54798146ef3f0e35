"""The problems of a command line, on standard error. Other messages, and tables: collectx/run/printing.py."""

from __future__ import annotations

from collections.abc import Sequence

from collectx.run.printing import error, message, note, print_message, print_sweep, say

__all__ = ["config_errors", "error", "note", "print_sweep", "say", "usage_error", "usage_errors"]


def usage_error(text: str) -> int:
    """Prints an error of the command line; returns the exit status."""
    message(text)
    return 2


def usage_errors(problems: Sequence[str]) -> int:
    """Prints problems of the command line; returns the exit status."""
    return usage_error(" ".join(problems))


def config_errors(problems: Sequence[str]) -> int:
    """Prints every problem; returns the exit status."""
    count = len(problems)
    head = f"{count} problems in the configuration, no worker was started:"
    if count == 1:
        head = "A problem in the configuration, no worker was started:"
    print_message(head, "bold red")
    for problem in problems:
        first, *more = problem.splitlines()
        print_message("\n".join([f"  - {first}", *(f"    {line}" for line in more)]))
    return 2
