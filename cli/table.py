"""The table of a sweep's points: what `result.json` of each says. Also of points that failed or never ran."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectx.run import RunFolder

_HEAD = ("point", "status", "frames", "frames/s", "return", "wall_s")


def show(root: Path, points: Sequence[tuple[str, Path]]) -> None:
    """Prints the table of the points, each a name and a run folder, and the sweep's folder; plain where the output is
    no terminal."""
    rows = [_row(name, RunFolder(folder).read_result()) for name, folder in points]
    print()
    if sys.stdout.isatty():
        _rich(rows)
    else:
        _plain(rows)
    print(f"sweep folder: {root}", flush=True)


def _row(name: str, result: dict[str, Any] | None) -> tuple[str, ...]:
    if result is None:
        return (name, "not run", "", "", "", "")
    numbers = (
        _number(result.get("frames"), ",.0f"),
        _number(result.get("frames_per_s"), ",.0f"),
        _number(result.get("mean_return"), ".1f"),
        _number(result.get("wall_s"), ".1f"),
    )
    return (name, str(result.get("status")), *numbers)


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) else "-"


def _plain(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(_HEAD, *rows, strict=True)]
    for row in (_HEAD, *rows):
        cells = [cell.ljust(width) if index < 2 else cell.rjust(width) for index, (cell, width) in _cells(row, widths)]
        print("  ".join(cells).rstrip())


def _cells(row: Sequence[str], widths: Sequence[int]) -> enumerate[tuple[str, int]]:
    return enumerate(zip(row, widths, strict=True))


def _rich(rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"completed": "green", "failed": "red", "interrupted": "yellow"}
    shown = Table(box=box.SIMPLE)
    for index, title in enumerate(_HEAD):
        shown.add_column(title, justify="left" if index < 2 else "right", overflow="fold")
    for row in rows:
        cells = [Text(cell) for cell in row]
        cells[1].stylize(colours.get(row[1], "dim"))
        shown.add_row(*cells)
    Console().print(shown)
