"""Messages and tables of the command line: problems and notes on standard error, tables of runs on standard output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collectx.errors import DamagedFile, printable
from collectx.run import RunFolder, Status

COLUMNS = ("point", "status", "frames", "frames/s", "return", "wall_s")
_STYLES: dict[str, str] = {
    **{Status.COMPLETED: "green", Status.RUNNING: "green"},
    **{Status.FAILED: "red", Status.INTERRUPTED: "yellow"},
}


def usage_error(text: str) -> int:
    """Prints an error of the command line; returns the exit status."""
    print(f"collectx: {printable(text)}", file=sys.stderr)
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
    _print(head, "bold red")
    for problem in problems:
        first, *more = problem.splitlines()
        _print(f"  - {first}")
        for line in more:
            _print(f"    {line}")
    return 2


def error(text: str) -> None:
    """Prints an error after runs have ended."""
    _print(f"collectx: {text}", "bold red")


def note(text: str) -> None:
    """Prints a warning or an information."""
    _print(f"note: {text}", "yellow")


def say(text: str) -> None:
    """Prints a text, which may have parts of a folder's content, to standard output."""
    print(printable(text), flush=True)


def _print(text: str, style: str = "") -> None:
    text = printable(text)
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(text, style=style)
    else:
        print(text, file=sys.stderr)


def print_sweep(root: Path, points: Sequence[tuple[str, Path]], statuses: Mapping[Path, Status] | None = None) -> None:
    """Prints the table of the points (name and run folder) and the sweep's folder. `statuses` are those of run folders
    without a result; by default "not run"."""
    rows = []
    for name, folder in points:
        try:
            rows.append(cells(name, RunFolder(folder).read_result(), (statuses or {}).get(folder)))
        except DamagedFile:
            rows.append(cells(name, None, Status.DAMAGED))
    print()
    print_table(rows)
    say(f"sweep folder: {root}")


def print_table(rows: Sequence[tuple[str, ...]], head: Sequence[str] = COLUMNS) -> None:
    """Prints a table, without colours and lines if the output is not a terminal."""
    rows = [tuple(map(printable, row)) for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for texts in (head, *rows):
            columns = enumerate(zip(texts, widths, strict=True))
            padded = [text.ljust(width) if index < 2 else text.rjust(width) for index, (text, width) in columns]
            print("  ".join(padded).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE)
    for index, title in enumerate(head):
        shown.add_column(title, justify="left" if index < 2 else "right", overflow="fold")
    for name, status, *others in rows:
        shown.add_row(Text(name), Text(status, _STYLES.get(status, "dim")), *map(Text, others))
    Console().print(shown)


def cells(name: str, result: Mapping[str, Any] | None, status: Status | None = None) -> tuple[str, ...]:
    """The cells of a run: its result, or `status` if it has none."""
    if result is None:
        return (name, status or "not run", "", "", "", "")
    forms = {"frames": ",.0f", "frames_per_s": ",.0f", "mean_return": ".1f", "wall_s": ".1f"}
    values = [(result.get(key), form) for key, form in forms.items()]
    numbers = [format(value, form) if isinstance(value, (int, float)) else "-" for value, form in values]
    return (name, str(result.get("status")), *numbers)
