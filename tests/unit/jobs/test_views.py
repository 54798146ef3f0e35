"""What is shown of several runs that are watched."""

import re
import sys
from types import SimpleNamespace

import pytest
from composed_overrides import composed

from collectx.jobs import watcher
from collectx.jobs.status import NamedRun, RunStatus
from collectx.jobs.watcher import RunsDisplay, WatchedRun
from collectx.run import Status


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs at 1000 s: one has run for 65 s, one waits, one has completed."""
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr(watcher, "PLAIN_S", -1.0)
    runs = [
        WatchedRun(NamedRun(f"point{n}", tmp_path / str(n), composed()), job) for n, job in enumerate((None, "7", "8"))
    ]
    states = (Status.RUNNING, ""), (Status.QUEUED, "Resources: no node"), (Status.COMPLETED, "")
    for number, (run, state) in enumerate(zip(runs, states, strict=True)):
        run.status, run.since_s = RunStatus(*state), 935.0
        run.statistics.frames = 1500 * number
    return runs


def begin_terminal(monkeypatch):
    """Makes standard output a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def test_a_table_has_a_row_for_each_run(runs, capsys, monkeypatch):
    begin_terminal(monkeypatch)
    with RunsDisplay(runs) as display:
        display.draw()
        text = re.sub(r"\x1b\[[?\d;]*\w", "", capsys.readouterr().out)
    head, *rows = [line.split() for line in text.splitlines() if line.strip()]
    assert head[:7] == ["point", "job", "state", "for", "frames", "frames/s", "return"]
    assert rows[0][:4] == ["point0", "running", "1:05", "0"]
    assert rows[1][:6] == ["point1", "7", "queued", "(Resources)", "1:05", "1,500"]
    assert rows[2][:4] == ["point2", "8", "completed", "3,000"]


def test_elsewhere_a_line_counts_the_runs(runs, capsys):
    RunsDisplay(runs).draw()
    assert capsys.readouterr().out == "1 running, 1 queued, 1 completed; 4,500 frames\n"


@pytest.mark.parametrize(("num_runs", "batches", "stays"), [(1, 1, True), (1, 0, False), (3, 1, False)])
def test_the_last_progress_of_one_run_stays_on_a_terminal(runs, capsys, monkeypatch, num_runs, batches, stays):
    begin_terminal(monkeypatch)
    runs[0].statistics.batches = batches
    with RunsDisplay(runs[:num_runs]) as display:
        display.draw()
        capsys.readouterr()
    _, _, rest = capsys.readouterr().out.rpartition("\x1b[2K")
    assert ("\n" in rest) is stays  # otherwise the lines are erased at last
