"""Checkpoints on the disk: complete or absent, verified, the newest ones kept."""

from __future__ import annotations

import json
import os

import pytest
import torch

from collectx.errors import DamagedFile
from collectx.run.checkpoint import Checkpoint, Checkpoints


def _write(checkpoints: Checkpoints, batches: int):
    state = {"weights": torch.full((3,), float(batches)), "big": 2**100, "none": None}
    return checkpoints.write(batches, {"frames": 10 * batches}, state, {"replay": _write_replay})


def _write_replay(path):
    path.mkdir()
    (path / "frames.bin").write_bytes(b"frames")


def test_what_is_written_is_read(tmp_path):
    path = _write(Checkpoints(tmp_path / "checkpoints"), 12)
    checkpoint, problems = Checkpoints(tmp_path / "checkpoints").newest(lambda found: found)
    assert checkpoint is not None
    assert not problems
    assert checkpoint.path == path
    assert checkpoint.manifest["frames"] == 120
    state = checkpoint.state()
    assert state["weights"].tolist() == [12.0] * 3
    assert state["big"] == 2**100
    assert (checkpoint.folder("replay") / "frames.bin").read_bytes() == b"frames"
    assert checkpoint.folder("other") is None


def test_nobody_but_the_owner_can_write_to_a_checkpoint_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        path = Checkpoints(tmp_path / "checkpoints").write(1, {}, {}, {"replay": lambda folder: folder.mkdir()})
    finally:
        os.umask(before)
    written = {path.parent, path, *path.rglob("*")}
    assert {each.name for each in written} == {"checkpoints", "000000001", "state.pt", "manifest.json", "replay"}
    assert not any(each.stat().st_mode & 0o022 for each in written)


def test_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for batches in (1, 5, 1000, 20):
        _write(checkpoints, batches)
    assert [path.name for path in checkpoints.all()] == ["000000020", "000001000"]
    checkpoints.remove_after(20)
    assert [path.name for path in checkpoints.all()] == ["000000020"]


def _truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def _alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _alter, lambda path: path.unlink()], ids=["truncate", "alter", "remove"])
@pytest.mark.parametrize("name", ["state.pt", "replay/frames.bin", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, name, damage):
    checkpoints = Checkpoints(tmp_path, keep=2)
    old, new = _write(checkpoints, 1), _write(checkpoints, 2)
    if name == "manifest.json" and damage is _alter:
        manifest = json.loads((new / name).read_text())
        (new / name).write_text(json.dumps(manifest | {"batches": 3}))
    else:
        damage(new / name)
    with pytest.raises(DamagedFile, match=name):
        Checkpoint(new)
    checkpoint, problems = checkpoints.newest(lambda found: found)
    assert checkpoint is not None
    assert checkpoint.path == old
    assert len(problems) == 1
    assert str(new / name) in problems[0]


def test_code_in_a_state_is_not_executed(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/attacked",)

    path = Checkpoints(tmp_path).write(1, {}, {"weights": Attack()}, {})
    with pytest.raises(DamagedFile, match=r"state\.pt: cannot be loaded"):
        Checkpoint(path).state()
    assert not (tmp_path / "attacked").exists()


def test_a_failed_write_leaves_the_earlier_checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    _write(checkpoints, 1)

    def fail(path):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.write(2, {}, {}, {"replay": fail})
    assert [path.name for path in tmp_path.iterdir()] == ["000000001"]
