"""What is shown of several runs that are watched."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from composed_overrides import composed
from rich.console import Console

from collectx.jobs import views
from collectx.jobs.status import NamedRun, RunStatus
from collectx.jobs.views import RunsDisplay, WatchedRun
from collectx.run import Status


@pytest.fixture
def display(tmp_path, monkeypatch):
    """A display of three runs at 1000 s: one has run for 65 s, one waits, one has completed."""
    monkeypatch.setattr(views, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    runs = [
        WatchedRun(NamedRun(f"point{n}", tmp_path / str(n), composed()), job) for n, job in enumerate((None, "7", "8"))
    ]
    states = (Status.RUNNING, ""), (Status.QUEUED, "Resources: no node"), (Status.COMPLETED, "")
    for number, (run, state) in enumerate(zip(runs, states, strict=True)):
        run.status, run.since_s = RunStatus(*state), 935.0
        run.statistics.frames = 1500 * number
    return RunsDisplay(runs)


def test_a_table_has_a_row_for_each_run(display):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(display._table())
    head, *rows = [line.split() for line in capture.get().splitlines() if line.strip()]
    assert head[:7] == ["point", "job", "state", "for", "frames", "frames/s", "return"]
    assert rows[0][:4] == ["point0", "running", "1:05", "0"]
    assert rows[1][:6] == ["point1", "7", "queued", "(Resources)", "1:05", "1,500"]
    assert rows[2][:4] == ["point2", "8", "completed", "3,000"]


def test_elsewhere_a_line_counts_the_runs(display, capsys):
    display._print_line()
    assert capsys.readouterr().out == "1 running, 1 queued, 1 completed; 4,500 frames\n"


@pytest.mark.parametrize(("num_runs", "batches", "stays"), [(1, 1, True), (1, 0, False), (3, 1, False)])
def test_the_last_progress_of_one_run_stays_on_a_terminal(display, num_runs, batches, stays):
    one = RunsDisplay(display._runs[:num_runs])
    one._runs[0].statistics.batches = batches
    one._live = Mock()
    with one:
        one._live.start.assert_called_once_with()
        one.draw()
        assert one._live.update.call_args.kwargs == {"refresh": True}
    one._live.stop.assert_called_once_with()
    assert one._live.transient is not stays
