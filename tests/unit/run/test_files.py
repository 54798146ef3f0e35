"""Files that grow while they are read, and files that cannot be written."""

import os
import stat

import pytest

from collectx.errors import DamagedFileError
from collectx.fork_server import script
from collectx.run.folder import files
from collectx.run.folder.files import JsonLinesTail, LinesTail, write_atomically
from collectx.run.terminal import printing


@pytest.mark.parametrize("name", ["folder", "missing/file"])
def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f": '{tmp_path / name}'$"):
        write_atomically(tmp_path / name, lambda file: file.write(b"new"))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_lines_are_read_once_and_the_last_one_when_it_is_complete_or_nothing_follows(tmp_path):
    path = tmp_path / "log"
    tail, newest = LinesTail(path), LinesTail(path, newest_bytes=6)
    assert tail.read_lines() == ([], False)
    path.write_bytes(b"a\r\n\nbc")
    assert tail.read_lines() == ([b"a\r", b""], False)
    assert tail.read_lines() == ([], False)
    with open(path, "ab") as file:
        file.write(b"d\ne")
    assert newest.read_lines() == ([b"bcd"], False)
    assert tail.read_lines(is_last=True) == ([b"bcd", b"e"], False)
    assert tail.read_lines(is_last=True) == ([], False)
    path.write_bytes(b"new\n")
    assert tail.read_lines() == ([b"new"], True)


def test_the_line_of_a_damaged_file_is_counted_from_its_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n' * 1000)
    tail = JsonLinesTail(path, newest_bytes=100)
    assert len(tail.read()[0]) == 11
    with open(path, "a") as file:
        file.write('{"a": 2}\nno\n')
    with pytest.raises(DamagedFileError, match="line 1002 is not JSON"):
        tail.read()


def test_numbers_that_round_to_a_thousand():
    assert [printing.number(value) for value in (999.4, 999.6, -999.6, 1000)] == ["999", "1,000", "-1,000", "1,000"]
    assert [printing.number_cell(value) for value in (999.94, 999.96)] == ["999.9", "1,000.0"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((157.24, -44.8, None, float("nan")), ["157.2", "-44.8", "-", "-"]),
        ((0.1696, 0.008929), ["0.1696", "0.0089"]),
        ((12345.6, 7), ["12,345.6", "7.0"]),
        ((0.0, float("inf")), ["0.000", "inf"]),
        ((2e-5, 0.0), ["2.000e-05", "0.000e+00"]),
        ((3e20, 157.24), ["3.000e+20", "1.572e+02"]),
    ],
)
def test_the_numbers_of_a_column_have_the_same_decimals(values, texts):
    assert printing.number_cells(values) == texts


def test_a_file_has_the_permissions_of_the_umask_which_does_not_change_meanwhile(tmp_path, within):
    """Files that other threads make at that moment would have the changed one."""
    before = os.umask(0o027)
    try:
        for module in (files, script):
            within(module, "os", umask=lambda mask: pytest.fail("another thread may be making a file"))
        files.write_json(tmp_path / "a.json", {})
        assert script._umask() == 0o027
        assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640
    finally:
        os.umask(before)
