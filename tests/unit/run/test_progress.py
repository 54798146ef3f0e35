import io

import pytest
from rich.console import Console

from collectx.run import progress
from collectx.run.progress import Progress

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    monkeypatch.setattr(progress, "PLAIN_S", 0.01)


def test_plain_lines_where_there_is_no_terminal(statistics, wait_until):
    out = io.StringIO()
    with Progress(statistics, Console(file=out, width=20)):
        wait_until(lambda: out.getvalue().count("\n") >= 2)
    assert all("100/1,000 frames" in line for line in out.getvalue().splitlines())
    assert "\x1b" not in out.getvalue()


def test_the_cursor_is_back_after_an_error(statistics, wait_until):
    out = io.StringIO()
    display = Progress(statistics, Console(file=out, width=100, force_terminal=True, color_system=None))
    with pytest.raises(KeyboardInterrupt), display:  # noqa: PT012, the block is what is tested
        wait_until(lambda: "100 / 1,000 frames" in out.getvalue())
        raise KeyboardInterrupt
    assert -1 < out.getvalue().rfind(HIDE_CURSOR) < out.getvalue().rfind(SHOW_CURSOR)
    assert not display._thread.is_alive()


def test_a_closed_pipe_ends_the_display_and_not_the_run(statistics, wait_until, capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("closed")

    with Progress(statistics, Console(file=Closed(), width=100)):
        wait_until(lambda: "progress display stopped" in capsys.readouterr().err)
