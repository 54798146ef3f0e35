"""A restored buffer is the one that was saved: frames, numbers, priorities, and what is drawn next."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from user_code.countedframes import Stream, check_whole

from collectx import ReplayBuffer, checkpoints
from collectx.errors import DataError
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
    """A restored buffer replaces what the other buffer had, even if nothing was saved."""
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


@pytest.mark.parametrize("capacity", [7, 33, 90])
@pytest.mark.parametrize("frames", [12, 53])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_another_capacity_keeps_the_newest_frames_and_their_priorities(kind, frames, capacity):
    buffer, other, stream = make(kind), ReplayBuffer(capacity, sampler=SAMPLERS[kind](0)), Stream(1)
    buffer.extend(stream.take(frames))
    prioritize(buffer)
    other.load_state_dict(buffer.state_dict())
    newest = np.arange(frames - min(len(buffer), capacity), frames)
    assert (len(other), other.write_count) == (len(newest), frames)
    assert (other[newest] == buffer[newest]).all()
    if kind == "prioritized":
        priorities, kept = map(priorities_of, (buffer, other))
        both = [*priorities.keys() & kept.keys()]
        ratios = np.array([priorities[number] / kept[number] for number in both])
        assert len(both) > 1
        assert ratios == pytest.approx(np.full(len(both), ratios[0]), rel=1e-5)
    batch = stream.take(5)
    assert (other[other.extend(batch)] == batch).all()
    assert other.sample(30)["index"].min() >= other.write_count - len(other)


def priorities_of(buffer):
    """Returns the priorities of the frames that are drawn, by number, up to a common factor."""
    buffer.sampler.beta = 1.0
    sample = buffer.sample(1000)
    return dict(zip(sample["index"].tolist(), (1 / sample["priority_weight"]).tolist(), strict=True))


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


def test_a_state_is_replaced_beside_other_files(tmp_path):
    stream, path = Stream(1), tmp_path / "saved"
    (path / "000000001").mkdir(parents=True)
    for capacity in (np.int64(40), 4e1):  # any whole number
        buffer = ReplayBuffer(capacity)
        buffer.extend(stream.take(20))
        buffer.dumps(path)
    assert list(tmp_path.iterdir()) == [path]
    assert sorted(file.name for file in path.iterdir()) == ["000000001", "replay-buffer-000000002"]
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {path.stat().st_mode & 0o777}
    ReplayBuffer(40).loads(path)


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_saved_buffer_is_not_executed(tmp_path):
    buffer, mark = make("uniform"), tmp_path / "mark"
    attack = buffer.state_dict() | {"kind": Touches(mark)}
    checkpoints.Checkpoints(tmp_path, prefix="replay-buffer-").write(1, {}, {"state.pt": attack})
    with pytest.raises(ValueError, match=r"state\.pt cannot be loaded.*Restore the folder from a copy"):
        buffer.loads(tmp_path)
    assert not mark.exists()


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [lambda file: os.truncate(file, file.stat().st_size - 1), flip, os.remove])
def test_a_damaged_file_is_named_and_left_as_it_is(damage, tmp_path):
    buffer, other = make("slices"), make("slices")
    buffer.extend(Stream(1).take(20))
    buffer.dumps(tmp_path / "saved")
    files = [file for file in (tmp_path / "saved").rglob("*") if file.is_file()]
    for file in files:
        shutil.copytree(tmp_path / "saved", tmp_path / "damaged", dirs_exist_ok=True)
        damaged = tmp_path / "damaged" / file.relative_to(tmp_path / "saved")
        damage(damaged)
        content = damaged.exists() and damaged.read_bytes()
        with pytest.raises(ValueError, match=f"{file.name} .*Restore the folder from a copy"):
            other.loads(tmp_path / "damaged")
        assert content == (damaged.exists() and damaged.read_bytes())
        assert len(other) == 0


def test_a_crash_while_a_buffer_is_saved_leaves_the_state_before_or_the_new_one(tmp_path, monkeypatch, within):
    buffer, path, crashes, synced = make("uniform"), tmp_path / "now" / "saved", [], set()

    def recording(call):
        def recorded(*arguments):
            crashes.append(shutil.copytree(path.parent, tmp_path / str(len(crashes))))
            if isinstance(arguments[0], int):
                synced.add(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")).name)
            return call(*arguments)

        return recorded

    for number in (10, 20):
        buffer.extend(Stream(1).take(10))
        if number == 20:
            within(checkpoints, "os", fsync=recording(os.fsync), rename=recording(os.rename))
        buffer.dumps(path)
    monkeypatch.undo()
    within(checkpoints, "os", fsync=lambda descriptor: None)
    frames = []
    for crash in crashes:
        other = make("uniform")
        other.loads(crash / "saved")
        frames.append(len(other))
        other.dumps(crash / "saved")
        assert len([*crash.rglob("*")]) == len([*path.parent.rglob("*")])  # nothing is left over
    assert frames == sorted(frames)
    assert set(frames) == {10, 20}
    assert {"state.pt", "manifest.json", "saved"} <= synced


def fails(code):
    def failure(*_, **__):
        raise OSError(code, os.strerror(code))

    return failure


@pytest.mark.parametrize(
    ("library", "function", "code"),
    [
        ("tempfile", "mkdtemp", errno.EACCES),
        ("os", "fsync", errno.ENOSPC),
        ("os", "rename", errno.EACCES),
    ],
)
def test_a_disk_that_is_full_or_not_writable_leaves_what_was_saved_before(
    tmp_path, monkeypatch, within, library, function, code
):
    buffer, other, stream, path = make("uniform"), make("uniform"), Stream(1), tmp_path / "saved"
    buffer.extend(stream.take(10))
    buffer.dumps(path)
    before = sorted(path.rglob("*"))
    buffer.extend(stream.take(10))
    within(checkpoints, library, **{function: fails(code)})
    with pytest.raises(OSError, match=os.strerror(code)):
        buffer.dumps(path)
    monkeypatch.undo()
    assert sorted(path.rglob("*")) == before
    other.loads(path)
    assert len(other) == 10


def test_a_state_that_does_not_fit_is_refused(tmp_path):
    buffer, other = make("uniform"), make("uniform")
    buffer.extend(Stream(1).take(10))
    other.extend(Stream(1, size=4).take(10))
    with pytest.raises(FileNotFoundError, match="contains no replay buffer"):
        buffer.loads(tmp_path)
    with pytest.raises(DataError, match="'observation' has shape"):
        other.load_state_dict(buffer.state_dict())
    assert len(other) == 10


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_same_calls_draw_the_same_frames_in_every_version(kind, expected):
    """Runs that were recorded by earlier versions can be reproduced, and their checkpoints continue."""
    buffer, stream, rows = ReplayBuffer(24, sampler=SAMPLERS[kind](5), batch_size=6), Stream(1, 0, 5, 4), []
    for count in (1, 5, 18, 7, 30, 24):
        index = buffer.extend(stream.take(count))
        facts = [index[0].item(), index[-1].item(), len(index), len(buffer), buffer.write_count]
        draws = []
        for _ in range(2):
            if kind == "slices" and buffer.write_count < 3:
                continue
            sample = buffer.sample()
            draws.append(sample["index"].tolist())
            if kind == "prioritized":
                draws.append([float(f"{each:.5g}") for each in sample["priority_weight"].tolist()])
                buffer.update_priority(sample["index"], sample["index"] % 4)
        rows.append([facts, *draws])
    state = buffer.state_dict()
    plain = {name: state[name] for name in ("capacity", "first", "write_count", "kind")}
    rows.append([plain, {name: [*each.shape] for name, each in state["sampler"].items()}, buffer.nbytes > 2**16])
    other = ReplayBuffer(24, sampler=SAMPLERS[kind](0))
    other.load_state_dict(state)
    assert (other.sample(6)["index"] == buffer.sample(6)["index"]).all()
    expected(f"draws-{kind}", rows)


@pytest.mark.parametrize(("capacity", "count"), [(5, 5), (5, 6), (4, 9), (9000, 4096), (9000, 4097), (9000, 9001)])
def test_frames_are_restored_in_parts(capacity, count):
    """Each part has some thousand frames, also those of a ring that began again."""
    buffer, other = ReplayBuffer(capacity), ReplayBuffer(capacity)
    values = torch.arange(count)
    buffer.extend(TensorDict({"a": values}, [count]))
    other.extend(TensorDict({"a": -values - 1}, [count]))
    other.load_state_dict(buffer.state_dict())
    assert other[:]["a"].tolist() == values[-min(count, capacity) :].tolist()
