"""Curves in a terminal."""

import io
import math

import pytest
from composed_overrides import composed
from rich.console import Console

from collectx.jobs.status import NamedRun
from collectx.jobs.watcher import RunsDisplay, WatchedRun
from collectx.run.terminal.charts import chart, charts, rates, sparkline

RISING = [(float(second), 100 * second, float(second)) for second in range(11)]
EMPTY = chr(0x2800)


def test_a_chart_has_its_curve_between_its_labels():
    head, *rows, foot = chart("return", [(0.0, 1.0), (75.0, 3.0)], 28, 6, "").plain.split("\n")
    assert head.strip() == "return"
    assert foot.split() == ["0:00", "1:15"]
    assert {len(row) for row in rows} == {28}
    assert [row[:7].strip() for row in rows] == ["3", "", "", "1"]
    curve = [row[8:] for row in rows]
    # From the lower left to the upper right corner.
    assert curve[0].strip(EMPTY) == curve[0][-5:]
    assert curve[-1].strip(EMPTY) == curve[-1][:5]
    assert (ord(curve[-1][0]) & 0x40, ord(curve[0][-1]) & 0x08) == (0x40, 0x08)


def test_a_constant_curve_and_a_jump_are_drawn():
    rows = chart("return", [(0.0, 2.0), (1.0, 2.0)], 20, 5, "").plain.split("\n")[1:-1]
    assert [set(row[8:]) for row in rows] == [{EMPTY}, {EMPTY}, {chr(0x28C0)}]
    points = [(0.0, 0.0), (1.0, 0.0), (1.001, 1.0), (2.0, 1.0)]
    rows = chart("return", points, 20, 7, "").plain.split("\n")[1:-1]
    # No row of the jump is empty.
    assert all(row[8:].strip(EMPTY) for row in rows)


def test_rates_are_frames_per_second_and_the_chart_begins_at_zero():
    assert [rate for _, rate in rates(RISING)] == pytest.approx([100.0] * 10)
    assert rates(RISING[:2]) == []
    console = Console(file=io.StringIO(), width=100)
    console.print(charts(RISING, 100, 8))
    heads, first, *_, last, _ = console.file.getvalue().splitlines()
    assert heads.split() == ["return", "frames/s"]
    assert [line.split()[0] for line in (first, last)] == ["10", "0"]
    assert [line[len(line) // 2 :].split()[-2] for line in (first, last)] == ["100", "0"]
    assert charts(RISING[:1], 100, 8) is None


FALLING = [(float(second), 100 * second**2, float(9 - second)) for second in range(10)]
# Its mean return is unknown until the third batch.
LATE = [(0.0, 5, math.nan), (1.0, 10, math.nan), (3.0, 40, -2.0), (60.0, 50, 0.0), (75.0, 60, -1.0)]
CURVES = {
    "none": [],
    "one batch": RISING[:1],
    "two batches": RISING[:2],
    "three batches": RISING[:3],
    "falling": FALLING,
    "late": LATE,
    "one return": LATE[:3],
    "constant": [(time, 10 * number, 3.0) for number, (time, *_) in enumerate(RISING)],
    "all at once": [(7.0, number, float(number)) for number in range(3)],
}


def test_charts_and_sparklines(expected):
    texts = []
    for name, curve in CURVES.items():
        texts.append(f"--- {name}: {sparkline(curve, 8)!r} {[(round(t, 3), round(v, 3)) for t, v in rates(curve, 4)]}")
        if (drawn := charts(curve, 70, 6)) is not None:
            console = Console(file=io.StringIO(), width=70)
            console.print(drawn)
            texts += map(str.rstrip, console.file.getvalue().splitlines())
    texts += ["--- from 0", *chart("rate", [(0.0, 6.0), (3600.0, 12.0)], 30, 7, "", low=0.0).plain.splitlines()]
    expected("charts", "\n".join(texts))


def test_a_sparkline_rises_with_its_curve():
    line = sparkline(RISING, 8)
    assert line == "▁▂▃▄▅▆▇█"
    assert sparkline([(0.0, 1, float("nan")), (1.0, 2, 1.0)], 8) == ""


@pytest.mark.parametrize(("height", "has_curves"), [(30, True), (12, False)])
def test_the_view_has_curves_where_the_terminal_has_room(tmp_path, monkeypatch, height, has_curves):
    run = WatchedRun(NamedRun("run", tmp_path, composed()), None)
    run.statistics.curve[:] = RISING
    run.statistics.started = 0.0, 0.0
    view, console = RunsDisplay([run]), Console(file=io.StringIO(), width=100, height=height)
    monkeypatch.setattr(view, "_console", console)
    monkeypatch.setattr(run.run_folder, "metrics", tmp_path / "none")
    console.print(view._panel(run))
    assert ("⠀" in console.file.getvalue()) == has_curves
