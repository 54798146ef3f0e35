"""A full or unwritable disk: the user is told which file could not be written, and what can be saved is."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from collectx.cli import run
from collectx.run import RunFolder, Status, execute
from collectx.run.events import EventLog
from collectx.run.folder import JsonLines, read_lines, write_atomically


@pytest.fixture
def full(monkeypatch):
    """`full(name)` makes every later write of that file of a run folder fail."""
    names = set()

    def refused(path) -> bool:
        return os.path.basename(path).lstrip(".").startswith(tuple(names) or ("/",))

    append, fsync = JsonLines.append, os.fsync

    def appended(self, line):
        if refused(self._path):
            raise OSError(errno.ENOSPC, "No space left on device", str(self._path))
        append(self, line)

    def synced(descriptor):
        if refused(os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(JsonLines, "append", appended)
    monkeypatch.setattr(os, "fsync", synced)
    return names.add


@pytest.mark.parametrize(
    ("name", "status", "saved"),
    [
        ("metrics.jsonl", "failed", {"result.json", "final.pt"}),
        ("events.jsonl", "completed", {"result.json", "final.pt"}),
        ("final.pt", "failed", {"result.json"}),
        ("result.json", "completed", {"final.pt"}),
        ("meta.json", "failed", {"result.json"}),
    ],
)
def test_a_file_that_cannot_be_written_is_named_once(cfg, tmp_path, train_with, full, capsys, name, status, saved):
    def train(collection):
        for batch in collection:
            trainer.frames += batch.numel()
            collection.publish(torch.nn.Module())

    trainer = train_with(train)
    full(name)
    result = execute(cfg, tmp_path, [])
    files = RunFolder(tmp_path)
    assert result.status == status
    out, err = capsys.readouterr()
    assert (out + err).replace(str(files.log("trainer")), "").count(name) == 1
    assert "No space left on device" in out + err
    left = {path.name for path in (files.result, files.final_checkpoint) if path.exists()}
    assert left == saved
    assert not list(tmp_path.rglob(".*.json.*")) + list(tmp_path.rglob(".*.pt.*"))


def test_the_last_line_does_not_cost_the_checkpoint(cfg, tmp_path, train_with, full):
    def train(collection):
        next(collection)
        full("metrics.jsonl")

    train_with(train)
    assert execute(cfg, tmp_path, []).status is Status.FAILED
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
    lines.append({"batch": 1, "frames": 40})
    lines.close()
    assert [line["frames"] for line in read_lines(tmp_path / "metrics.jsonl")] == [20, 40]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_lines_on_a_full_disk_name_their_file(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    lines = JsonLines(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match=r"No space left.*metrics\.jsonl"):
        lines.append({"batch": 0})
    lines.close()


def test_a_checkpoint_that_torch_cannot_write_says_why(tmp_path):
    class Full:
        """Takes the first part: of a later error, torch raises one of its own."""

        def __init__(self, file):
            self.file, self.left = file, 1

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left -= 1
            return self.file.write(data)

        def flush(self):
            self.file.flush()

    with pytest.raises(OSError, match=r"No space left.*final\.pt"):
        write_atomically(tmp_path / "final.pt", lambda file: torch.save({"weight": torch.ones(9)}, Full(file)))
    assert list(tmp_path.iterdir()) == []


def test_events_that_cannot_be_written_reach_the_user_and_no_thread_fails(folder, full):
    events, said = EventLog(folder), []
    events.tell = said.append
    full("events.jsonl")
    for worker in range(2):
        events("worker_dropped", worker=worker, num_workers=1)
    events.close()
    assert [text.startswith("events are not written any more: ") for text in said] == [True, False, False]


def test_a_run_folder_that_cannot_be_made_is_a_wrong_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    small = ["launcher=inline", "env=counting", "policy=random", "trainer=meter", "collector.total_frames=512"]
    assert run.main([*small, "hydra.run.dir=file/run"]) == 2
    err = capsys.readouterr().err
    assert "the run folder cannot be made: " in err
    assert "choose another with hydra.run.dir" in err
    assert "Traceback" not in err
