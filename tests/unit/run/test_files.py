"""Files that grow while they are read, and files that cannot be written."""

import pytest

from collectx.run.folder.files import LinesTail, write_atomically


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
