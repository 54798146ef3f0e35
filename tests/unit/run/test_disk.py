"""A full or unwritable disk: the user is told which file could not be written, and what can be saved is."""

import errno
import io
import os
import re
from pathlib import Path

import pytest
import torch

from collectx import checkpoints
from collectx.cli import run
from collectx.run import RunFolder, execute
from collectx.run.folder import files as folders
from collectx.run.folder.events import EventLog
from collectx.run.folder.files import JsonLines, read_lines, write_atomically

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


@pytest.fixture
def full(monkeypatch, within):
    """`full(name)`: writing that file of a run folder ends on a full disk."""
    names = []

    def opened(path, mode, **options):
        return open("/dev/full" if mode == "ab" and path.name in names else path, mode, **options)

    def temporary(path, *arguments):
        handle = os.open(path, *arguments)
        if Path(path).name.removeprefix(".new-").rpartition("-")[0] in names:
            with open("/dev/full", "r+b", buffering=0) as file:
                os.dup2(file.fileno(), handle)
        return handle

    monkeypatch.setattr(folders, "open", opened, raising=False)
    within(folders, "os", open=temporary)
    return names.append


@pytest.mark.parametrize(
    ("name", "status", "saved"),
    [
        ("metrics.jsonl", "failed", {"result.json", "final.pt"}),
        ("events.jsonl", "completed", {"result.json", "final.pt"}),
        ("final.pt", "failed", {"result.json"}),
        ("result.json", "failed", {"final.pt"}),
        ("meta.json", "failed", {"result.json"}),
    ],
)
def test_a_file_that_cannot_be_written_is_named_once(cfg, tmp_path, train_with, full, capsys, name, status, saved):
    def train(collection):
        for _ in collection:
            collection.publish(torch.nn.Module())

    train_with(train)
    full(name)
    assert execute(cfg, tmp_path, []).status == status
    files, said = RunFolder(tmp_path), "".join(capsys.readouterr())
    assert said.replace(str(files.log("trainer")), "").count(name) == 1
    assert "No space left on device" in said
    assert {path.name for path in (files.result, files.final_checkpoint) if path.exists()} == saved
    assert not list(tmp_path.rglob(".new-*"))


def test_the_last_line_does_not_cost_the_checkpoint(cfg, tmp_path, train_with, full):
    train_with(next)  # its line is written when the run is closed
    full("metrics.jsonl")
    assert execute(cfg, tmp_path, []).status == "failed"
    assert RunFolder(tmp_path).final_checkpoint.exists()


def test_a_line_that_the_disk_takes_in_parts_is_complete(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    write = lines._file.write

    class Slow:
        name, close = lines._file.name, lines._file.close

        def write(self, data):
            return write(data[:7])

    lines._file = Slow()
    lines.append({"batch": 0, "frames": 20})
    lines.close()
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"batch": 0, "frames": 20}]


def test_events_that_a_full_disk_refuses_are_written_when_there_is_room(folder):
    folder.events.symlink_to("/dev/full")
    events, told = EventLog(folder), []
    events.show = told.append
    for message in ("one", "two"):
        events("jobs", message=message)
    assert told[1:] == ["one", "two"]
    assert re.fullmatch(r"events cannot be logged: .*No space left.* logs them when it can\.", told[0])
    folder.events.unlink()
    folder.events.write_text('{"event":"jo')  # the disk took a part of the line
    events("jobs", message="three")
    events.close()
    assert [line["message"] for line in folder.read_events()] == ["one", "two", "three"]
    assert [line.split()[-1] for line in folder.log("trainer").read_text().splitlines()] == ["one", "two", "three"]
    assert told[3:] == ["three"]


def test_events_for_which_there_is_never_room_are_counted(folder):
    folder.events.symlink_to("/dev/full")
    events, told = EventLog(folder), []
    events.show = told.append
    events("jobs", message="one")
    events.close()
    assert told[2:] == ["1 event could not be logged, so `collectx reproduce` may refuse this run."]


def test_the_folder_of_a_file_that_was_renamed_is_synced(tmp_path, within):
    """Otherwise, the file has its old content after the host has lost power."""
    synced = []

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        os.fsync(descriptor)

    within(checkpoints, "os", fsync=fsync)
    write_atomically(tmp_path / "final.pt", lambda file: file.write(b"weights"))
    assert synced == [str(tmp_path)]
    kept = checkpoints.Checkpoints(tmp_path / "checkpoints", 1)
    folder = kept.write(3, {}, {checkpoints.STATE: {}})
    synced.clear()
    kept.rank(3, 0.5)
    assert synced[-1] == str(folder)


@pytest.mark.parametrize("rest", ["", "{", '{"batch": "' + 9000 * "x"])
@pytest.mark.parametrize("before", ["", '{"batch": 0}\n'])
def test_a_line_that_the_full_disk_has_cut_is_replaced_by_the_next_one(tmp_path, before, rest):
    path = tmp_path / "events.jsonl"
    path.write_text(before + rest)
    lines = JsonLines(path)
    lines.append({"batch": 1})
    lines.close()
    assert path.read_text() == before + '{"batch":1}\n'


def test_a_checkpoint_that_torch_cannot_write_says_why(tmp_path):
    class Full(io.BytesIO):
        """Takes the first part: of a later error, torch raises one of its own."""

        def write(self, data):
            if self.tell():
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with pytest.raises(OSError, match=r"No space left.*final\.pt"):
        write_atomically(tmp_path / "final.pt", lambda file: torch.save(torch.ones(9), Full()))


@pytest.mark.sample(1)
@pytest.mark.parametrize("where", ["run.dir={}/file/run", "run.dir={}", "sweep.dir={}/file/x -m", "sweep.dir={} -m"])
def test_a_run_folder_that_cannot_be_made_is_a_wrong_configuration(tmp_path, capsys, where):
    small = ["launcher=inline", "env=counting", "policy=random", "trainer=meter"]
    for name in ("file", "logs", "0"):
        Path(tmp_path, name).touch()
    assert run.main([*small, *f"hydra.{where.format(tmp_path)}".split()]) == 2
    *_, first, problem = capsys.readouterr().err.splitlines()
    assert first == "Configuration error (nothing was started):"
    assert re.match(r"  - cannot create the run folder .*: .*\. Choose another folder with hydra.run.dir", problem)
