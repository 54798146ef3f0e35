"""A restored buffer is the one that was saved: frames, numbers, priorities, and what is drawn next."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worlds.countedframes import Stream

from collectx import ReplayBuffer
from collectx.errors import ShapeError
from collectx.replay import PrioritizedSampler, SliceSampler, UniformSampler
from collectx.replay import buffer as replay_buffer

SAMPLERS = {
    "uniform": lambda seed: UniformSampler(seed),
    "prioritized": lambda seed: PrioritizedSampler(seed=seed),
    "slices": lambda seed: SliceSampler(3, seed=seed),
}


def restored(buffer, way, sampler, path):
    other = ReplayBuffer(buffer.capacity, sampler=sampler)
    if way == "dumps":
        buffer.dumps(path)
        other.loads(path)
    elif way == "torch.save":
        torch.save(buffer.state_dict(), path)
        other.load_state_dict(torch.load(path, weights_only=True))
    else:
        other.load_state_dict(buffer.state_dict())
    return other


@pytest.mark.parametrize(
    ("kind", "way", "frames"),
    [
        *((kind, "state_dict", frames) for kind in SAMPLERS for frames in (12, 53)),
        ("prioritized", "torch.save", 53),
        ("prioritized", "dumps", 53),
        ("slices", "dumps", 0),
    ],
)
def test_there_and_back(kind, way, frames, tmp_path):
    buffer, stream = ReplayBuffer(40, sampler=SAMPLERS[kind](1)), Stream(1)
    if frames:
        buffer.extend(stream.take(frames))
    if kind == "prioritized" and frames:
        sample = buffer.sample(10)
        buffer.update_priority(sample["index"], torch.arange(10.0))
    other = restored(buffer, way, SAMPLERS[kind](2), tmp_path / "saved")
    assert (len(other), other.write_count) == (len(buffer), buffer.write_count)
    for _ in range(2):
        batch = stream.take(17)
        assert torch.equal(buffer.extend(batch), other.extend(batch))
        one, two = buffer.sample(30), other.sample(30)
        assert (one == two).all()
        if kind == "prioritized":
            for each in (buffer, other):
                each.update_priority(one["index"], torch.arange(30.0))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_empty_buffer_can_be_put_back_too(kind):
    empty = ReplayBuffer(40, sampler=SAMPLERS[kind](1)).state_dict()
    buffer, stream = ReplayBuffer(40, sampler=SAMPLERS[kind](2)), Stream(1)
    buffer.extend(stream.take(53))
    buffer.load_state_dict(empty)
    assert (len(buffer), buffer.write_count) == (0, 0)
    with pytest.raises(ValueError, match="the buffer is empty"):
        buffer.sample(3)
    buffer.extend(stream.take(12))
    assert set(buffer.sample(60)["index"].reshape(-1).tolist()) <= set(range(12))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sample_is_of_the_frames_before_or_of_those_that_were_put_back(kind, monkeypatch):
    old, new = Stream(1), Stream(1, 7)
    buffer, other = (ReplayBuffer(40, sampler=SAMPLERS[kind](1)) for _ in range(2))
    buffer.extend(old.take(30))
    other.extend(new.take(30))
    state, barrier = other.state_dict(), replay_buffer.barrier

    def meanwhile():
        monkeypatch.setattr(replay_buffer, "barrier", barrier)
        buffer.load_state_dict(state)

    monkeypatch.setattr(replay_buffer, "barrier", meanwhile)
    assert buffer.sample(30)["observation"][..., 0].unique().tolist() == [7]


def test_another_sampler_takes_the_frames_as_new():
    buffer = ReplayBuffer(40, sampler=UniformSampler(0))
    buffer.extend(Stream(1).take(53))
    prioritized = ReplayBuffer(40, sampler=PrioritizedSampler(seed=0))
    slices = ReplayBuffer(40, sampler=SliceSampler(3, seed=0))
    for other in (prioritized, slices):
        other.load_state_dict(buffer.state_dict())
        assert len(other) == 40
    assert prioritized.sample(400)["index"].unique().tolist() == list(range(13, 53))
    heads = slices.sample(300)["observation"][..., :3]
    assert torch.equal(heads[..., 2], heads[:, :1, 2] + torch.arange(3))


def test_a_folder_is_replaced_and_holds_no_pickle(tmp_path):
    stream = Stream(1)
    for capacity in (np.int64(40), 4e1):  # any whole number
        buffer = ReplayBuffer(capacity)
        buffer.extend(stream.take(10))
        buffer.extend(stream.take(10))
        buffer.dumps(tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert json.loads((tmp_path / "saved" / "state.json").read_text())["write_count"] == 20
    ReplayBuffer(40).loads(tmp_path / "saved")
    kinds = {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert kinds == {".json", ".memmap"}


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def no_permission(*_, **__):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("what", "failure", "code"),
    [
        ("pathlib.Path.mkdir", no_permission, errno.EACCES),
        ("pathlib.Path.write_text", no_space, errno.ENOSPC),
        ("shutil.disk_usage", lambda path: SimpleNamespace(free=1000), errno.ENOSPC),
        ("rename the new folder", no_permission, errno.EACCES),
    ],
)
def test_a_disk_that_is_full_or_not_writable_leaves_what_was_saved_before(tmp_path, monkeypatch, what, failure, code):
    buffer, stream, path = ReplayBuffer(40), Stream(1), tmp_path / "saved"
    buffer.extend(stream.take(10))
    buffer.dumps(path)
    buffer.extend(stream.take(10))
    rename = Path.rename
    with monkeypatch.context() as patch:
        if what == "rename the new folder":
            patch.setattr(Path, "rename", lambda old, new: (failure if old.suffix == ".new" else rename)(old, new))
        else:
            patch.setattr(what, failure)
        with pytest.raises(OSError, match=r"No space left on device|Permission denied") as caught:
            buffer.dumps(path)
    assert caught.value.errno == code
    assert list(tmp_path.iterdir()) == [path]
    other = ReplayBuffer(40)
    other.loads(path)
    assert len(other) == 10
    buffer.dumps(path)
    other.loads(path)
    assert len(other) == 20


def test_mistakes_are_named(tmp_path):
    buffer = ReplayBuffer(40)
    buffer.extend(Stream(1).take(10))
    with pytest.raises(ValueError, match=r"capacity=30: .* capacity=40"):
        ReplayBuffer(30).load_state_dict(buffer.state_dict())
    with pytest.raises(FileNotFoundError, match=r"has no state\.json"):
        buffer.loads(tmp_path)
    other = ReplayBuffer(40)
    other.extend(Stream(1, size=4).take(10))
    with pytest.raises(ShapeError, match="observation is"):
        other.load_state_dict(buffer.state_dict())
    assert len(other) == 10
