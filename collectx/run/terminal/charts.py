"""Curves in a terminal: charts of braille dots, two columns and four rows per character, and sparklines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from collectx.run.terminal.printing import clock, number

_DOTS = np.array([[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]])
_BLOCKS = "▁▂▃▄▅▆▇█"
# Width of the numbers at a chart's left side.
_LABELS = 7
# In fewer columns, there is one chart.
_TWO_CHARTS = 60


def chart(
    title: str,
    points: Sequence[tuple[float, float]],
    width: int,
    height: int,
    style: str,
    low: float | None = None,
    place: Callable[[float], str] = clock,
    unit: str = "",
) -> Text:
    """Returns the drawing of a curve with its title and the limits of both axes.

    Args:
        points: at least two pairs (place, value), with ascending places.
        width, height: the size of the whole chart, in characters; two rows contain text.
        low: the value at which the vertical axis begins; None: the minimum.
        place: formats the ends of the horizontal axis, the right one with a `unit`; by default, seconds.
    """
    places, values = np.array(points, float).T
    width, rows = width - _LABELS - 1, height - 2
    curve = np.interp(np.linspace(places[0], places[-1], 2 * width), places, values)
    # The limits are those of all values, also of peaks between two columns.
    low, high = values.min() if low is None else low, values.max()
    levels = np.rint((curve - low) / ((high - low) or 1.0) * (4 * rows - 1)).astype(int)
    cells = np.zeros((rows, width), int)
    for column, (before, level) in enumerate(zip([levels[0], *levels], levels, strict=False)):
        # A steep part of the curve is a vertical line.
        for dot in range(min(level, before + 1), max(level, before - 1) + 1):
            cells[rows - 1 - dot // 4, column // 2] |= _DOTS[column % 2, 3 - dot % 4]
    labels = {0: number(float(high)), rows - 1: number(float(low))}
    text = Text(f"{'':{_LABELS}} ")
    text.append(f"{title}\n", "bold")
    for row, line in enumerate(cells):
        text.append(f"{labels.get(row, ''):>{_LABELS}} ", "dim")
        text.append("".join(chr(0x2800 + cell) for cell in line) + "\n", style)
    begin, end = place(places[0]), place(places[-1]) + unit
    return text.append(f"{'':{_LABELS}} {begin}{end:>{width - len(begin)}}", "dim")


def charts(curve: Sequence[tuple[float, int, float]], width: int, height: int, begin_s: float = 0.0) -> Table | None:
    """Returns the drawing of the mean return over the frames, and beside it, in a wide terminal, that of the speed over
    the time; None before there is a curve. The zero of the curve is `begin_s` on the axis of time."""
    is_wide = width >= _TWO_CHARTS
    returns = [(float(frames), value) for _, frames, value in curve if value == value]
    size = (width // 2 - 2 if is_wide else width), height
    drawn = [chart("return", returns, *size, "green", place=_short, unit=" frames")] if len(returns) > 1 else []
    if (is_wide or not drawn) and len(speeds := [(begin_s + time, rate) for time, rate in rates(curve)]) > 1:
        drawn.append(chart("frames/s", speeds, *size, "cyan", low=0.0))
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*drawn)
    return grid if drawn else None


def _short(count: float) -> str:
    """Formats a number of frames: `1.23M`."""
    size, unit = next((each for each in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if count >= 0.9995 * each[0]), (1.0, ""))
    return f"{count / size:.3g}{unit}"


def rates(curve: Sequence[tuple[float, int, float]], most: int = 40) -> list[tuple[float, float]]:
    """Returns pairs (end in seconds, frames per second) for at most `most` equal parts of the time."""
    if len(curve) < 3:
        return []
    times, frames, _ = np.array(curve, float).T
    ends = np.linspace(times[0], times[-1], min(most, len(times) - 1) + 1)
    passed = np.diff(ends)
    if not passed.all():
        return []
    return list(zip(ends[1:].tolist(), (np.diff(np.interp(ends, times, frames)) / passed).tolist(), strict=True))


def sparkline(curve: Sequence[tuple[float, int, float]], width: int) -> str:
    """Returns the mean return over the frames as a line of `width` blocks; empty before there is a curve."""
    points = [(frames, value) for _, frames, value in curve if value == value]
    if len(points) < 2:
        return ""
    places, values = np.array(points, float).T
    line = np.interp(np.linspace(places[0], places[-1], width), places, values)
    levels = (line - line.min()) / ((line.max() - line.min()) or 1.0) * (len(_BLOCKS) - 1)
    return "".join(_BLOCKS[level] for level in np.rint(levels).astype(int))
