"""The run folder and its files."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from collectx.checkpoints import Checkpoints
from collectx.errors import DamagedFileError
from collectx.run.folder.files import JsonLines, read_lines, write_atomically, write_json
from collectx.run.folder.layout import RunFolder


def test_begin_makes_the_folders_and_removes_the_old_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder("a/b")
    monkeypatch.chdir("/")
    folder.begin()
    assert folder.path == tmp_path / "a" / "b"
    folder.hydra.mkdir()
    folder.final_checkpoint.write_text("old")
    for path in (folder.result, folder.metrics, folder.events, folder.secret, folder.log("trainer")):
        path.write_text("old")
    folder.jobs.mkdir()
    for path in (folder.job_note, folder.worker_jobs):
        path.write_text("old")
    folder.begin(keep_logs=True)
    assert all(path.exists() for path in (folder.job_note, folder.worker_jobs, folder.log("trainer")))
    folder.begin()
    folder.jobs.rmdir()  # it is empty
    assert sorted(path.name for path in folder.path.iterdir()) == [".hydra", "checkpoints", "logs", "snapshot"]
    assert not list(folder.logs.iterdir()) + list(folder.checkpoints.iterdir())
    assert folder.read_result() is None
    assert list(folder.read_metrics()) == list(folder.read_events()) == []


def test_a_run_has_an_id(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin()
    assert folder.run_id is None
    write_json(folder.meta, {"id": "0123456789abcdef"})
    write_json(folder.resumed(folder.meta, 7), {"id": "0123456789abcdef"})
    assert folder.run_id == "0123456789abcdef"


def test_a_new_run_forgets_what_resumes_wrote_and_a_resumed_one_keeps_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin()
    firsts = (folder.config, folder.meta, folder.patch)
    for first in firsts:
        for path in (first, folder.resumed(first, 7), folder.resumed(first, 12)):
            path.write_text("{}")
    folder.begin(keep_run=True)
    assert [[batches for batches, _ in folder.parts(first)] for first in firsts] == [[0, 7, 12]] * 3
    folder.begin()
    assert [folder.parts(first) for first in firsts] == [[(0, first)] for first in firsts]


@pytest.mark.parametrize("keep_run", [False, True])
def test_begin_removes_what_a_killed_process_has_not_completed(tmp_path, monkeypatch, keep_run):
    folder = RunFolder(tmp_path)
    folder.begin()
    before = set(folder.path.rglob("*"))

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        for module, name in ((os, "replace"), (os, "rename")):
            killed.setattr(module, name, fail)
        for module, name in ((Path, "unlink"), (shutil, "rmtree")):
            killed.setattr(module, name, lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            write_json(folder.result, {})
        with pytest.raises(KeyboardInterrupt):
            Checkpoints(folder.checkpoints).write(1, {}, {"state.pt": {}})
    assert len(set(folder.path.rglob("*")) - before) == 4
    folder.begin(keep_run=keep_run)
    assert set(folder.path.rglob("*")) == before


@pytest.mark.parametrize("keep_run", [False, True])
@pytest.mark.parametrize("in_this_process", [False, True])
def test_a_run_that_never_begins_leaves_the_one_before_it(tmp_path, keep_run, in_this_process):
    folder = RunFolder(tmp_path / "run")
    folder.begin()
    run = (folder.config, folder.meta, folder.metrics, folder.result, folder.final_checkpoint, folder.log("trainer"))
    for path in (*run, folder.path / "mine"):
        path.write_text("old")
    before = {path: path.read_text() for path in folder.path.rglob("*") if path.is_file()}
    folder.set_aside(keep_run)
    folder.begin(keep_run=keep_run)
    for path in (folder.meta, folder.resumed(folder.config, 3) if keep_run else folder.config, folder.events):
        path.write_text("new")
    assert folder.has_replaced
    (folder if in_this_process else RunFolder(folder.path)).restore()
    assert {path: path.read_text() for path in folder.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("keep_run", [False, True])
def test_a_full_disk_or_a_kill_while_a_run_is_set_aside_loses_nothing(tmp_path, keep_run, monkeypatch):
    """Stops before each file that is moved or copied; another process then finds the earlier run."""

    class Stopped(BaseException):
        pass

    folder, stop_at = RunFolder(tmp_path / "run"), 0
    folder.begin()
    for path in (folder.config, folder.meta, folder.metrics, folder.result, folder.events, folder.log("trainer")):
        path.write_text("old")
    (folder.checkpoints / "000000001").mkdir()
    (folder.checkpoints / "000000001" / "state.pt").write_text("old")
    before = {path: path.read_text() for path in folder.path.rglob("*") if path.is_file()}

    def stopping(real, *arguments):
        nonlocal left
        left -= 1
        if left < 0:
            raise Stopped
        return real(*arguments)

    for each in (shutil.copy2, Path.rename, Path.mkdir, Path.write_text, Path.replace, Path.unlink, shutil.rmtree):
        owner = shutil if each in (shutil.copy2, shutil.rmtree) else Path
        patched = lambda *arguments, real=each, **options: stopping(lambda *a: real(*a, **options), *arguments)  # noqa: E731
        monkeypatch.setattr(owner, each.__name__, patched)
    is_complete = False
    while not is_complete:
        left, is_complete = stop_at, True
        try:
            folder.set_aside(keep_run)
            folder.begin(keep_run=keep_run)
            folder.config.write_text("new")
            RunFolder(folder.path).recover()
        except Stopped:
            is_complete = False
        left = 10**6
        RunFolder(folder.path).recover()
        found = {path: path.read_text() for path in folder.path.rglob("*") if path.is_file()}
        assert found == before, stop_at
        stop_at += 1
    assert stop_at > 20


def test_json_is_written_whole_or_not_at_all_and_as_readable_as_any_other_file(tmp_path):
    path, other = tmp_path / "result.json", tmp_path / "other"
    write_json(path, {"a": 1})
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)

    def fail(file):
        file.write(b"{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert json.loads(path.read_text()) == {"a": 1}
    assert {*tmp_path.iterdir()} == {path, other}
    path.write_text('{"status": "completed"')
    with pytest.raises(DamagedFileError, match=r"result.json is damaged: the file is not JSON"):
        RunFolder(tmp_path).read_result()


def test_lines_are_there_at_once_and_a_torn_last_one_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.append({"batch": 0})
    assert list(read_lines(path)) == [{"batch": 0}]
    lines.append({1: (float("inf"), True, None, 2.5), "return": float("nan"), "where": path})
    lines.close()
    with open(path, "a") as file:
        file.write('{"batch": ')
    assert list(read_lines(path)) == [{"batch": 0}, {"1": [None, True, None, 2.5], "return": None, "where": str(path)}]
