"""Messages and tables: plain where there is no terminal, and never what acts on one; the table of a sweep."""

import io
import json
import sys

import pytest
from rich.console import Console

from collectx.run.folder.result import Status
from collectx.run.terminal import printing
from collectx.run.terminal.printing import print_sweep

NUMBERS = {"frames": 12345, "frames_per_s": 1234.5, "mean_return": float("nan"), "wall_s": None}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_table_has_a_row_of_each_run(monkeypatch, capsys, is_terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    rows = [printing.cells("a\x1b[2J", Status.FAILED, NUMBERS), printing.cells("[b]", "not started", None)]
    printing.print_table([(*row, job) for row, job in zip(rows, ("7", ""), strict=True)], (*printing.COLUMNS, "job"))
    out = capsys.readouterr().out
    assert r"a\x1b[2J" in out
    assert "\x1b[2J" not in out
    assert ("\x1b[31mfailed" in out) == is_terminal  # in red
    for part in ("frames/s", "12,345", "1,234", " - ", "[b]", "not started"):
        assert part in out


@pytest.mark.parametrize("columns", [30, 56, 60, 80])
def test_a_narrow_terminal_cuts_no_number(monkeypatch, capsys, columns):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    numbers = {"frames": 61440, "frames_per_s": 6789.0, "mean_return": 173.33, "wall_s": 10.9}
    printing.print_table([printing.cells("narrow", Status.COMPLETED, numbers)])
    out = capsys.readouterr().out
    assert [cell for cell in ("frames/s", "wall_s", "61,440", "6,789", "173.3", "10.9") if cell not in out] == []
    assert (out.count("\n") == 6) == (columns < 60)
    assert max(map(len, out.split("\n"))) <= columns


@pytest.mark.parametrize("is_terminal", [False, True])
def test_messages_are_printed_as_they_are(monkeypatch, capsys, is_terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    path = "/a[b]/" + 50 * "long"
    for show in (printing.error, printing.note, printing.message):
        show(f"{path}\x1b[2J")
    err = capsys.readouterr().err
    assert err.count(rf"{path}\x1b[2J") == 3
    assert err.count("collectx:") == 2
    assert ("\x1b[" in err) == is_terminal


def test_the_first_line_of_an_error_is_red(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    printing.error("what happened\n  where")
    first, second = capsys.readouterr().err.splitlines()
    assert "\x1b[1;31mcollectx: what happened" in first
    assert second.endswith("  where")
    assert "31m" not in second


def test_a_terminal_breaks_long_lines_between_words_but_not_within_commands_and_paths(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")  # else rich takes a dumb terminal for 80 columns wide
    command = "collectx resume /a/long/folder collector.total_frames=N"
    text = f"  - 100 frames are no multiple of env.num_envs=8, so use 96.\nTo go on: {command}\n{50 * 'long'} path"
    printing.note(text)
    assert capsys.readouterr().err == f"note: {text}\n"  # a file
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    printing.print_message(text)
    assert capsys.readouterr().err.split("\n") == [
        "  - 100 frames are no multiple of",
        "    env.num_envs=8, so use 96.",
        "To go on:",
        f"  {command}",
        50 * "long",
        "  path",
        "",
    ]


def test_a_path_is_relative_to_the_current_folder_if_there_is_one(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert printing.typed(tmp_path / "here" / "run") == "run"
    assert printing.typed(tmp_path / "run") == str(tmp_path / "run")
    (tmp_path / "here").rmdir()
    assert printing.typed(tmp_path / "here" / "run") == str(tmp_path / "here" / "run")


# --- sweep table ---


def points(folder, **returns):
    """Points by name, with the result of each; None: it has failed."""
    for name, value in returns.items():
        status = "failed" if value is None else "completed"
        (folder / name).mkdir()
        result = {"status": status, "frames": 10, "frames_per_s": 5.0, "mean_return": value, "wall_s": 2.0}
        (folder / name / "result.json").write_text(json.dumps(result))
    return [(name, folder / name) for name in returns]


def rows(text):
    return [line.split() for line in text.splitlines() if line and not line.startswith("sweep folder")]


def test_points_are_ranked_by_the_objective_and_those_without_one_are_last(tmp_path, capsys):
    print_sweep(tmp_path, points(tmp_path, **{"a=1": 3.0, "a=2": None, "a=3": 7.0, "a=4": 5.0}))
    assert [row[0] for row in rows(capsys.readouterr().out)[1:]] == ["a=3", "a=4", "a=1", "a=2"]


def test_of_a_time_less_is_better(tmp_path, capsys):
    made = points(tmp_path, **{"a=1": 3.0, "a=2": 4.0})
    (tmp_path / "a=2" / "result.json").write_text(json.dumps({"status": "completed", "wall_s": 1.0}))
    print_sweep(tmp_path, made, objective="wall_s")
    assert [row[0] for row in rows(capsys.readouterr().out)[1:]] == ["a=2", "a=1"]


def test_evaluations_have_a_column_if_they_rank_and_are_named_if_they_do_not(tmp_path, capsys):
    made = points(tmp_path, **{"a=1": 3.0, "a=2": 4.0})
    for value, (_, folder) in enumerate(made):
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, "eval/mean_return": 2.0 - value}))
    print_sweep(tmp_path, made, objective="eval/mean_return")
    said = capsys.readouterr()
    assert [(row[0], row[-1]) for row in rows(said.out)[1:]] == [("a=1", "2.000"), ("a=2", "1.000")]
    assert said.err == ""
    print_sweep(tmp_path, made)
    assert f"collectx report {tmp_path} objective=eval/mean_return" in capsys.readouterr().err


def test_over_seeds_mean_and_spread_are_ranked(tmp_path, capsys):
    values = {"a=1,seed=0": 1.0, "a=1,seed=1": 3.0, "a=2,seed=0": 10.0, "a=2,seed=1": None, "a=3,seed=0": None}
    print_sweep(tmp_path, points(tmp_path, **values, **{"a=3,seed=1": None}))
    *_, head, first, second, third = rows(capsys.readouterr().out)
    assert head == ["point", "seeds", "mean_return", "std", "min", "max"]
    assert first == ["a=2", "1", "10.00", "-", "10.00", "10.00"]
    assert second == ["a=1", "2", "2.00", "1.41", "1.00", "3.00"]
    assert third == ["a=3", "0", "-", "-", "-", "-"]


@pytest.mark.parametrize("names", [["seed=0", "seed=1"], ["seed=0,a=x", "seed=1,a=x"]])
def test_seeds_alone_are_one_row(tmp_path, capsys, names):
    print_sweep(tmp_path, points(tmp_path, **dict.fromkeys(names, 2.0)))
    assert rows(capsys.readouterr().out)[-1][1:] == ["2", "2.000", "0.000", "2.000", "2.000"]


def test_names_that_do_not_fit_are_broken_after_their_commas(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    row = "policy.normalize_observations=True,seed=0", "completed", "123,456", "12,345"
    console = Console(file=io.StringIO(), width=70)
    console.print(printing.table([row], ("run", "status", "frames", "frames/s"), 2, box=None))
    _, first, second = console.file.getvalue().splitlines()
    assert first.split() == ["policy.normalize_observations=True,", *row[1:]]
    assert second.split() == ["seed=0"]
    # A line has as much as fits.
    rows = [("a/lr=0.1,seed=0", "dropped", "12", "3"), ("a_longer_name=x seed=1", "dropped", "12", "3")]
    monkeypatch.setenv("COLUMNS", "44")
    console = Console(file=io.StringIO(), width=44)
    console.print(printing.table(rows, ("run", "status", "frames", "std"), 2, box=None))
    _, *lines = map(str.split, console.file.getvalue().splitlines())
    assert [line[0] for line in lines] == ["a/lr=0.1,seed=0", "a_longer_name=x", "seed=1"]


def test_a_sweep_tells_a_note_of_all_points_once(capsys):
    with printing.telling_once():
        for text in ("old", "old", "new"):
            printing.note(text)
    printing.note("old")
    assert capsys.readouterr().err.split("\n")[:-1] == ["note: old", "note: new", "note: old"]
