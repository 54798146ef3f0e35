import io
import threading

import pytest
from rich.console import Console

from collectx.run import progress
from collectx.run.progress import Progress
from collectx.run.statistics import Statistics

SHOW_CURSOR = "\x1b[?25h"
HIDE_CURSOR = "\x1b[?25l"


@pytest.fixture
def statistics(part, delivery):
    made = Statistics(1000)
    made.add(delivery(0, [part(worker=0, frames=100)]), 0.0)
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    monkeypatch.setattr(progress, "PLAIN_S", 0.01)


def test_plain_lines_where_there_is_no_terminal(statistics, wait_until):
    out = io.StringIO()
    with Progress(statistics, Console(file=out, width=20)):
        wait_until(lambda: out.getvalue().count("\n") >= 2)
    lines = out.getvalue().splitlines()
    assert all("100/1,000 frames" in line for line in lines)
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_cursor_is_back_after_an_error(statistics, wait_until, error):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)

    def run():
        with Progress(statistics, console):
            wait_until(lambda: "100 / 1,000 frames" in out.getvalue())
            raise error

    with pytest.raises(error):
        run()
    assert HIDE_CURSOR in out.getvalue()
    assert out.getvalue().rfind(SHOW_CURSOR) > out.getvalue().rfind(HIDE_CURSOR)
    assert not [thread for thread in threading.enumerate() if thread.name == "collectx-progress"]


def test_a_closed_pipe_ends_the_display_and_not_the_run(statistics, capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("closed")

    display = Progress(statistics, Console(file=Closed(), width=100))
    with display:
        display._thread.join(timeout=60)
        assert not display._thread.is_alive()
    assert "progress display stopped" in capsys.readouterr().err
