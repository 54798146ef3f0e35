import json
import stat

import pytest

from collectx.run.folder import JsonLines, RunFolder, plain, read_lines, write_atomically, write_json


def test_begin_makes_the_folders_and_removes_the_old_run(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    folder.begin()
    for path in (folder.snapshot, folder.logs, folder.checkpoints, folder.data):
        assert path.is_dir()
    folder.hydra.mkdir()
    for path in (folder.result, folder.metrics, folder.events, folder.log("trainer"), folder.final_checkpoint):
        path.write_text("old")
    folder.begin()
    assert sorted(path.name for path in folder.path.iterdir()) == [".hydra", "checkpoints", "data", "logs", "snapshot"]
    assert not list(folder.logs.iterdir()) + list(folder.checkpoints.iterdir())


def test_a_relative_path_survives_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder("run").path == tmp_path / "run"


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})

    def fail(file):
        file.write(b"{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_a_written_file_is_as_readable_as_any_other(tmp_path):
    write_json(tmp_path / "result.json", {})
    (tmp_path / "other").write_text("")
    assert stat.S_IMODE((tmp_path / "result.json").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_lines_are_there_at_once_and_a_torn_last_one_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.append({"batch": 0})
    assert list(read_lines(path)) == [{"batch": 0}]
    lines.append({"batch": 1, "return": float("nan"), "where": path})
    lines.close()
    with open(path, "a") as file:
        file.write('{"batch": ')
    assert list(read_lines(path)) == [{"batch": 0}, {"batch": 1, "return": None, "where": str(path)}]


def test_reading_what_is_not_there(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_result() is None
    assert list(folder.read_metrics()) == list(folder.read_events()) == []
    folder.result.write_text("{")
    assert folder.read_result() is None


def test_plain_keeps_json_and_turns_the_rest_into_text():
    assert plain({1: (float("inf"), True, None, 2.5)}) == {"1": [None, True, None, 2.5]}
