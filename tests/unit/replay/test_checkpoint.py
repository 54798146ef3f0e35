"""A restored buffer is the one that was saved: frames, numbers, priorities, and what is drawn next."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worlds.countedframes import Stream, check_whole

from collectx import ReplayBuffer
from collectx.errors import ShapeError
from collectx.replay import PrioritizedSampler, SliceSampler, UniformSampler
from collectx.replay import buffer as replay_buffer

SAMPLERS = {
    "uniform": UniformSampler,
    "prioritized": lambda seed: PrioritizedSampler(seed=seed),
    "slices": lambda seed: SliceSampler(3, seed=seed),
}


def make(kind, seed=0):
    return ReplayBuffer(40, sampler=SAMPLERS[kind](seed))


@pytest.mark.parametrize("is_dumped", [True, False])
@pytest.mark.parametrize("frames", [0, 12, 53])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_there_and_back(kind, frames, is_dumped, tmp_path):
    """In place of what the other buffer had, also where nothing was saved."""
    buffer, other, stream, path = make(kind, 1), make(kind, 2), Stream(1), tmp_path / "saved"
    other.extend(Stream(1, 7).take(30))
    prioritize(other)
    if frames:
        buffer.extend(stream.take(frames))
        prioritize(buffer)
    if is_dumped:
        buffer.dumps(path)
        other.loads(path)
    else:
        torch.save(buffer.state_dict(), path)
        other.load_state_dict(torch.load(path, weights_only=True))
    assert (len(other), other.write_count) == (len(buffer), buffer.write_count)
    for _ in range(2):
        batch = stream.take(17)
        assert torch.equal(buffer.extend(batch), other.extend(batch))
        assert (buffer.sample(30) == other.sample(30)).all()
        prioritize(buffer, other)


def prioritize(*buffers):
    for buffer in buffers:
        if isinstance(buffer.sampler, PrioritizedSampler):
            buffer.update_priority(buffer.sample(30)["index"], torch.arange(30.0))


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_is_overwritten_while_it_is_copied_is_drawn_anew(kind, is_restored, monkeypatch):
    buffer, other = make(kind), make(kind)
    buffer.extend(Stream(1).take(40))
    newer = Stream(1, 7).take(30)
    other.extend(newer)
    barrier = replay_buffer.barrier

    def meanwhile():  # another process, after the copy and before it is checked
        monkeypatch.setattr(replay_buffer, "barrier", barrier)
        if is_restored:
            buffer.load_state_dict(other.state_dict())
        else:
            buffer.extend(newer)

    monkeypatch.setattr(replay_buffer, "barrier", meanwhile)
    sample = buffer.sample(30)
    check_whole(sample)
    if is_restored:
        assert sample["observation"][..., 0].unique().tolist() == [7]
    else:
        assert sample["index"].min() >= 30


def test_another_sampler_takes_the_frames_as_new():
    buffer, prioritized, slices = map(make, SAMPLERS)
    buffer.extend(Stream(1).take(53))
    for other in (prioritized, slices):
        other.load_state_dict(buffer.state_dict())
        assert len(other) == 40
    assert prioritized.sample(400)["index"].unique().tolist() == list(range(13, 53))
    heads = slices.sample(300)["observation"][..., :3]
    assert torch.equal(heads[..., 2], heads[:, :1, 2] + torch.arange(3))


def test_a_folder_is_replaced_and_holds_no_pickle(tmp_path):
    stream, path = Stream(1), tmp_path / "saved"
    for capacity in (np.int64(40), 4e1):  # any whole number
        buffer = ReplayBuffer(capacity)
        buffer.extend(stream.take(20))
        buffer.dumps(path)
    assert list(tmp_path.iterdir()) == [path]
    ReplayBuffer(40).loads(path)
    assert {file.suffix for file in path.rglob("*") if file.is_file()} == {".json", ".memmap"}


def fails(code):
    def failure(*_, **__):
        raise OSError(code, os.strerror(code))

    return failure


def not_the_new_folder(old, new, rename=Path.rename):
    return (fails(errno.EACCES) if old.suffix == ".new" else rename)(old, new)


@pytest.mark.parametrize(
    ("what", "failure", "code"),
    [
        ("pathlib.Path.mkdir", fails(errno.EACCES), errno.EACCES),
        ("pathlib.Path.write_text", fails(errno.ENOSPC), errno.ENOSPC),
        ("shutil.disk_usage", lambda path: SimpleNamespace(free=1000), errno.ENOSPC),
        ("pathlib.Path.rename", not_the_new_folder, errno.EACCES),
    ],
)
def test_a_disk_that_is_full_or_not_writable_leaves_what_was_saved_before(tmp_path, monkeypatch, what, failure, code):
    buffer, other, stream, path = make("uniform"), make("uniform"), Stream(1), tmp_path / "saved"
    buffer.extend(stream.take(10))
    buffer.dumps(path)
    buffer.extend(stream.take(10))
    with monkeypatch.context() as patch:
        patch.setattr(what, failure)
        with pytest.raises(OSError, match=os.strerror(code)):
            buffer.dumps(path)
    assert list(tmp_path.iterdir()) == [path]
    other.loads(path)
    assert len(other) == 10


def test_a_state_that_does_not_fit_is_refused(tmp_path):
    buffer, other = make("uniform"), make("uniform")
    buffer.extend(Stream(1).take(10))
    other.extend(Stream(1, size=4).take(10))
    with pytest.raises(ValueError, match=r"capacity=30: .* capacity=40"):
        ReplayBuffer(30).load_state_dict(buffer.state_dict())
    with pytest.raises(FileNotFoundError, match=r"has no state\.json"):
        buffer.loads(tmp_path)
    with pytest.raises(ShapeError, match="observation is"):
        other.load_state_dict(buffer.state_dict())
    assert len(other) == 10
