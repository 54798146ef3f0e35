"""Messages and tables of the command line: problems and notes on standard error, tables of runs on standard output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collectx.errors import DamagedFile
from collectx.run import RunFolder, Status

COLUMNS = ("point", "status", "frames", "frames/s", "return", "wall_s")


def usage_error(text: str) -> int:
    """Prints an error of the command line; returns the exit status."""
    print(f"collectx: {text}", file=sys.stderr)
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


def _print(text: str, style: str = "") -> None:
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(text, style=style)
    else:
        print(text, file=sys.stderr)


def print_sweep(root: Path, points: Sequence[tuple[str, Path]], statuses: Mapping[Path, Status] | None = None) -> None:
    """Prints the table of the points (name and run folder) and the sweep's folder.

    Args:
        statuses: of run folders without a result; by default "not run".
    """
    print()
    print_table([_row(name, RunFolder(folder), (statuses or {}).get(folder)) for name, folder in points])
    print(f"sweep folder: {root}", flush=True)


def print_table(rows: Sequence[tuple[str, ...]], head: Sequence[str] = COLUMNS) -> None:
    """Prints a table, without colours and lines if the output is not a terminal."""
    if sys.stdout.isatty():
        _rich(rows, head)
    else:
        _plain(rows, head)


def _row(name: str, files: RunFolder, status: Status | None) -> tuple[str, ...]:
    try:
        return cells(name, files.read_result(), status)
    except DamagedFile:
        return cells(name, None, Status.DAMAGED)


def cells(name: str, result: Mapping[str, Any] | None, status: Status | None = None) -> tuple[str, ...]:
    """The cells of a run: its result, or `status` if it has none."""
    if result is None:
        return (name, status or "not run", "", "", "", "")
    numbers = (
        _number(result.get("frames"), ",.0f"),
        _number(result.get("frames_per_s"), ",.0f"),
        _number(result.get("mean_return"), ".1f"),
        _number(result.get("wall_s"), ".1f"),
    )
    return (name, str(result.get("status")), *numbers)


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) else "-"


def _plain(rows: Sequence[tuple[str, ...]], head: Sequence[str]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        shown = [
            cell.ljust(width) if index < 2 else cell.rjust(width) for index, (cell, width) in _cells(cells, widths)
        ]
        print("  ".join(shown).rstrip())


def _cells(cells: Sequence[str], widths: Sequence[int]) -> enumerate[tuple[str, int]]:
    return enumerate(zip(cells, widths, strict=True))


def _rich(rows: Sequence[tuple[str, ...]], head: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles: dict[str, str] = {Status.COMPLETED: "green", Status.RUNNING: "green", Status.FAILED: "red"}
    styles[Status.INTERRUPTED] = "yellow"
    shown = Table(box=box.SIMPLE)
    for index, title in enumerate(head):
        shown.add_column(title, justify="left" if index < 2 else "right", overflow="fold")
    for cells in rows:
        texts = [Text(cell) for cell in cells]
        texts[1].stylize(styles.get(cells[1], "dim"))
        shown.add_row(*texts)
    Console().print(shown)
