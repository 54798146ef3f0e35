"""The table of a sweep's points: what `result.json` of each says. Also of points that failed or never ran."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collectx.errors import DamagedFile
from collectx.run import RunFolder

HEAD = ("point", "status", "frames", "frames/s", "return", "wall_s")


def show(root: Path, points: Sequence[tuple[str, Path]], statuses: Mapping[Path, str] | None = None) -> None:
    """Prints the table of the points, each a name and a run folder, and the sweep's folder; plain where the output is
    no terminal.

    Args:
        statuses: of run folders without a result; by default they did not run.
    """
    print()
    draw([_row(name, RunFolder(folder), (statuses or {}).get(folder)) for name, folder in points])
    print(f"sweep folder: {root}", flush=True)


def draw(rows: Sequence[tuple[str, ...]], head: Sequence[str] = HEAD) -> None:
    """Prints a table; plain where the output is no terminal."""
    if sys.stdout.isatty():
        _rich(rows, head)
    else:
        _plain(rows, head)


def _row(name: str, files: RunFolder, status: str | None) -> tuple[str, ...]:
    try:
        return row(name, files.read_result(), status)
    except DamagedFile:
        return row(name, None, "damaged")


def row(name: str, result: Mapping[str, Any] | None, status: str | None = None) -> tuple[str, ...]:
    """The cells of a run: its result, or `status` where it has none."""
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

    colours = {"completed": "green", "running": "green", "failed": "red", "interrupted": "yellow"}
    shown = Table(box=box.SIMPLE)
    for index, title in enumerate(head):
        shown.add_column(title, justify="left" if index < 2 else "right", overflow="fold")
    for cells in rows:
        texts = [Text(cell) for cell in cells]
        texts[1].stylize(colours.get(cells[1], "dim"))
        shown.add_row(*texts)
    Console().print(shown)
