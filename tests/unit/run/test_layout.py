"""The lock of a run folder: who holds it, and what releases it."""

import os
import shutil
import socket

import pytest

from collectx.errors import ConfigError
from collectx.run.folder import layout
from collectx.run.folder.layout import RunFolder, absolute, holder, is_locked, locked


@pytest.fixture(params=[True, False], ids=["linux", "elsewhere"])
def files(tmp_path, request, monkeypatch):
    """A run folder, with the lock of each platform."""
    monkeypatch.setattr(layout, "_HAS_OFD", request.param)
    made = RunFolder(tmp_path / "run")
    made.begin()
    return made


def forked(function):
    """Calls `function` in a forked process; returns what its exit status says: whether it was true."""
    if (pid := os.fork()) == 0:
        os._exit(int(bool(function())))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_a_path_has_no_dots_unless_they_lead_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/away")
    assert absolute("far//./away/../new") == tmp_path / "far" / "new"
    assert absolute("link/../new") == tmp_path / "link" / ".." / "new"


def locks(files):
    try:
        with locked(files, replace=True):
            return True
    except ConfigError:
        return False


def test_a_trainer_that_copies_its_folder_keeps_the_lock(files, tmp_path):
    with locked(files, replace=True):
        shutil.copytree(files.path, tmp_path / "copy")
        assert not forked(lambda: locks(files))
        assert is_locked(files)
        assert holder(files)[0] == os.getpid()
        assert not is_locked(RunFolder(tmp_path / "copy"))
        assert holder(RunFolder(tmp_path / "copy"))[0] is None
    assert forked(lambda: locks(files))
    assert (is_locked(files), holder(files)[0]) == (False, None)


def test_a_second_lock_of_one_process_is_refused_and_leaves_the_first(files):
    with locked(files, replace=True):
        assert not locks(files)
        assert not forked(lambda: locks(files))


def test_a_forked_process_does_not_keep_the_lock_of_one_that_is_killed(files):
    """The process that holds the lock is killed, and one that it has forked goes on."""
    locked_by_parent, ends = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        with locked(files, replace=True):
            if os.fork() == 0:
                os.write(locked_by_parent[1], b"x")
                os.close(ends[1])
                os.read(ends[0], 1)
                os._exit(0)
            os.close(ends[0])
            os.read(os.pipe()[0], 1)
    os.read(locked_by_parent[0], 1)
    assert is_locked(files)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert not is_locked(files)
    assert locks(files)
    os.write(ends[1], b"x")
    for end in (*locked_by_parent, *ends):
        os.close(end)


def test_a_forked_process_that_leaves_the_block_releases_nothing(files):
    with locked(files, replace=True):
        if (pid := os.fork()) != 0:
            os.waitpid(pid, 0)
            assert is_locked(files)
    if pid == 0:
        os._exit(0)
    assert not is_locked(files)


@pytest.mark.parametrize("pid", ["0", "-1", "1", "parent", "x"])
def test_a_process_that_only_the_file_names_is_no_holder(files, pid):
    with locked(files, replace=True):
        files.lock.write_text(f"process {os.getppid() if pid == 'parent' else pid} on {socket.gethostname()}")
        assert is_locked(files)
        assert holder(files)[0] is None
