"""Messages and tables: plain where there is no terminal, and never what acts on one."""

import sys

import pytest

from collectx.run.folder.result import Status
from collectx.run.terminal import printing

NUMBERS = {"frames": 12345, "frames_per_s": 1234.5, "mean_return": float("nan"), "wall_s": None}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_table_has_a_row_of_each_run(monkeypatch, capsys, is_terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    rows = [printing.cells("a\x1b[2J", Status.FAILED, NUMBERS), printing.cells("[b]", "not run", None)]
    printing.print_table([(*row, job) for row, job in zip(rows, ("7", ""), strict=True)], (*printing.COLUMNS, "job"))
    out = capsys.readouterr().out
    assert r"a\x1b[2J" in out
    assert "\x1b[2J" not in out
    assert ("\x1b[31mfailed" in out) == is_terminal  # in red
    for part in ("frames/s", "12,345", "1,234", " - ", "[b]", "not run"):
        assert part in out


@pytest.mark.parametrize("is_terminal", [False, True])
def test_messages_are_printed_as_they_are(monkeypatch, capsys, is_terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    path = "/a[b]/" + 50 * "long"
    for show in (printing.error, printing.note, printing.message):
        show(f"{path}\x1b[2J")
    err = capsys.readouterr().err
    assert err.count(rf"{path}\x1b[2J") == 3
    assert err.count("collectx: ") == 2
    assert ("\x1b[" in err) == is_terminal


def test_a_path_is_relative_to_the_current_folder_if_there_is_one(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert printing.typed(tmp_path / "here" / "run") == "run"
    assert printing.typed(tmp_path / "run") == str(tmp_path / "run")
    (tmp_path / "here").rmdir()
    assert printing.typed(tmp_path / "here" / "run") == str(tmp_path / "here" / "run")
