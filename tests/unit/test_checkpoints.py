"""Checkpoints on the disk: complete or absent, verified, the newest ones kept."""

from __future__ import annotations

import json
import os

import pytest
import torch

from collectx import checkpoints as module
from collectx.checkpoints import Checkpoint, Checkpoints
from collectx.errors import DamagedFileError


def _write(checkpoints: Checkpoints, batches: int):
    state = {"weights": torch.full((3,), float(batches)), "big": 2**100, "none": None}
    states = {"state.pt": state, "replay-0.pt": {"frames": torch.arange(3)}}
    return checkpoints.write(batches, {"frames": 10 * batches}, states)


def test_what_is_written_is_read(tmp_path):
    path = _write(Checkpoints(tmp_path / "checkpoints"), 12)
    checkpoint, problems = Checkpoints(tmp_path / "checkpoints").newest(lambda found: found)
    assert checkpoint is not None
    assert not problems
    assert checkpoint.path == path
    assert checkpoint.manifest["frames"] == 120
    state = checkpoint.load()
    assert state["weights"].tolist() == [12.0] * 3
    assert state["big"] == 2**100
    for mmap in (False, True):
        assert checkpoint.load("replay-0.pt", mmap)["frames"].tolist() == [0, 1, 2]
    assert "replay-0.pt" in checkpoint
    assert "replay-1.pt" not in checkpoint


def test_nobody_but_the_owner_can_write_to_a_checkpoint_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        path = Checkpoints(tmp_path / "checkpoints").write(1, {}, {"state.pt": {}})
    finally:
        os.umask(before)
    written = {path.parent, path, *path.rglob("*")}
    assert {each.name for each in written} == {"checkpoints", "000000001", "state.pt", "manifest.json"}
    assert not any(each.stat().st_mode & 0o022 for each in written)


def test_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for batches in (1, 5, 1000, 20):
        _write(checkpoints, batches)
    assert [path.name for path in checkpoints.all()] == ["000000020", "000001000"]
    checkpoints.remove_after(20)
    assert [path.name for path in checkpoints.all()] == ["000000020"]


def test_the_best_is_kept_beside_the_newest(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for batches, score in enumerate((None, 1.0, 3.0, 2.0, 3.0, None), 1):
        checkpoints.write(batches, {"score": score}, {"state.pt": {}})
        best = checkpoints.best()
        assert (best and checkpoints.number(best)) == (None, 2, 3, 3, 5, 5)[batches - 1]
    assert [checkpoints.number(path) for path in checkpoints.all()] == [5, 6]
    (tmp_path / "000000005" / "manifest.json").write_text("{")
    assert checkpoints.best() is None


def _truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def _alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_truncate, _alter, lambda path: path.unlink()], ids=["truncate", "alter", "remove"])
@pytest.mark.parametrize("name", ["state.pt", "replay-0.pt", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, name, damage):
    checkpoints = Checkpoints(tmp_path, keep=2)
    old, new = _write(checkpoints, 1), _write(checkpoints, 2)
    if name == "manifest.json" and damage is _alter:
        manifest = json.loads((new / name).read_text())
        (new / name).write_text(json.dumps(manifest | {"format": 2}))
    else:
        damage(new / name)
    with pytest.raises(DamagedFileError, match=name):
        Checkpoint(new)
    checkpoint, problems = checkpoints.newest(lambda found: found)
    assert checkpoint is not None
    assert checkpoint.path == old
    assert len(problems) == 1
    assert str(new / name) in problems[0]


def test_only_the_files_that_a_reader_names_are_verified(tmp_path):
    """`eval` reads no replay buffer, which may have gigabytes."""
    checkpoints = Checkpoints(tmp_path)
    path = _write(checkpoints, 12)
    _alter(path / "replay-0.pt")
    found, problems = checkpoints.newest(lambda found: found.load(), ["state.pt"])
    assert found["weights"].tolist() == [12.0] * 3
    assert not problems
    assert checkpoints.newest(lambda found: found)[0] is None


def test_code_in_a_state_is_not_executed(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/attacked",)

    path = Checkpoints(tmp_path).write(1, {}, {"state.pt": {"weights": Attack()}})
    with pytest.raises(DamagedFileError, match=r"state\.pt cannot be loaded"):
        Checkpoint(path).load()
    assert not (tmp_path / "attacked").exists()


def test_a_failed_write_leaves_the_earlier_checkpoints(tmp_path, within):
    checkpoints = Checkpoints(tmp_path)
    _write(checkpoints, 1)

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    within(module, "os", fsync=fail)
    with pytest.raises(OSError, match="No space left"):
        _write(checkpoints, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["000000001"]
