"""Writes and reads of one process, against a plain list."""

import threading
from multiprocessing.connection import Pipe

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from user_code.countedframes import SIZE, Stream, check_whole, counted, write

from collectx import ReplayBuffer
from collectx.errors import ConfigError, DataError
from collectx.replay import PrioritizedSampler, SliceSampler, UniformSampler

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3)


def clocks(batch) -> list[int]:
    """Returns the step of each frame of an env whose one episode never ends."""
    return batch["observation"][..., 2].reshape(-1).tolist()


def numbered(first: int, shape) -> TensorDict:
    clock = first + np.arange(int(np.prod(shape))).reshape(shape)
    return counted(np.zeros_like(clock), clock, np.array(10**9), size=4)


@settings(max_examples=40)
@given(capacity=st.integers(1, 40), shapes=st.lists(SHAPES, max_size=8), seed=st.integers(0, 9))
def test_the_newest_frames_stay(capacity, shapes, seed):
    buffer = ReplayBuffer(capacity, sampler=UniformSampler(seed))
    written = 0
    for shape in shapes:
        batch = numbered(written, shape)
        index = buffer.extend(batch)
        assert index.tolist() == clocks(batch) == list(range(written, written + batch.numel()))
        written += batch.numel()
        assert repr(buffer) == f"<ReplayBuffer: {min(written, capacity)} of {capacity} frames, UniformSampler>"
        there = list(range(max(0, written - capacity), written))
        assert (len(buffer), buffer.write_count) == (len(there), written)
        assert clocks(buffer[torch.tensor(there)]) == there
        sample = buffer.sample(20)
        assert sample.batch_size == (20,)
        assert clocks(sample) == sample["index"].tolist()
        assert set(clocks(sample)) <= set(there)
        check_whole(sample)
        for absent in (there[0] - 1, written):
            with pytest.raises(IndexError, match=f"frame {absent} is not in the buffer"):
                buffer[torch.tensor([absent])]


def test_keys_dtypes_and_memory_of_a_sample():
    batch = Stream(3).take(5)
    batch["half"] = torch.arange(15).reshape(3, 5).to(torch.bfloat16)
    batch["image"] = torch.arange(15, dtype=torch.uint8).reshape(3, 5, 1, 1).expand(3, 5, 2, 2)
    buffer = ReplayBuffer(100)
    buffer.extend(batch)
    flat = batch.reshape(-1)
    everything = buffer[torch.arange(15)]
    for key in flat.keys(True, True):
        assert torch.equal(everything[key], flat[key]), key
        assert everything[key].dtype == flat[key].dtype, key
    sample = buffer.sample(4)
    assert set(sample.keys(True, True)) == {*flat.keys(True, True), "index"}
    assert sample["index"].dtype == torch.int64
    before = buffer[sample["index"]]
    sample["observation"].zero_()
    batch.zero_()
    assert torch.equal(buffer[sample["index"]]["observation"], before["observation"])
    assert before["observation"].any()


def test_every_frame_is_drawn_equally_often():
    buffer = ReplayBuffer(20, sampler=UniformSampler(0))
    buffer.extend(numbered(0, [33]))
    counts = (buffer.sample(20_000)["index"] - 13).bincount(minlength=20)
    assert counts.shape == (20,)
    assert (counts - 1000).abs().max() < 200


@pytest.mark.parametrize("has_memfd", [True, False])
def test_a_buffer_that_travels_shares_its_frames_and_its_lock(has_memfd, tmp_path, monkeypatch):
    """Two locks of one process on one file would not exclude each other, and closing one would free the other."""
    if not has_memfd:
        monkeypatch.delattr("os.memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    buffer = ReplayBuffer(50, sampler=UniformSampler(0))
    here, there = Pipe()
    with here, there:
        there.send(buffer)
        other = here.recv()
    assert list(tmp_path.iterdir()) == []
    assert other._lock is buffer._lock
    other.extend(Stream(1).take(20))
    assert len(buffer) == 20
    one, two = buffer.sample(30), other.sample(30)
    check_whole(one)
    assert not torch.equal(one["index"], two["index"])
    assert one["observation"].shape == (30, SIZE)


@pytest.mark.parametrize("make", [UniformSampler, PrioritizedSampler, lambda: SliceSampler(2)])
def test_a_script_that_seeds_torch_draws_the_same_frames_each_time(make):
    def drawn():
        buffers = [ReplayBuffer(100, sampler=make()) for _ in range(2)]
        for buffer in buffers:
            buffer.extend(Stream(1).take(100))
        return [buffer.sample(20)["index"].tolist() for buffer in buffers]

    torch.manual_seed(0)
    first, second = drawn()
    torch.manual_seed(0)
    assert drawn() == [first, second]
    assert first != second
    assert drawn() != [first, second]


def test_threads():
    buffer = ReplayBuffer(200)
    buffer.extend(Stream(2).take(8))
    threads = [threading.Thread(target=write, args=(buffer, 2 * w, 50)) for w in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        check_whole(buffer.sample(32))
    for thread in threads:
        thread.join(180)
    assert buffer.write_count == 16 * 151


def test_frame_by_frame_on_a_disk(tmp_path):
    buffer = ReplayBuffer(10, scratch_dir=tmp_path)
    assert [buffer.add(frame) for frame in numbered(0, [13])] == list(range(13))
    assert clocks(buffer[:]) == list(range(3, 13))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: ReplayBuffer(0, batch_size=-1, scratch_dir="/none"),
            r"capacity=0 must be an int, at least 1[\s\S]*batch_size=-1[\s\S]*is not a folder",
        ),
        (lambda: ReplayBuffer(1.5, batch_size="8"), r"capacity=1\.5 must be[\s\S]*batch_size='8' must be an int"),
        (lambda: PrioritizedSampler(-1, -2, 0), r"alpha=-1[\s\S]*beta=-2[\s\S]*eps=0 must be greater than 0"),
        (lambda: SliceSampler(0), "slice_len=0"),
    ],
)
def test_wrong_settings_are_refused_all_at_once(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("make", [UniformSampler, lambda: PrioritizedSampler(0.0, 0.0, 1e-9), lambda: SliceSampler(1)])
def test_the_least_settings_are_enough(make):
    buffer = ReplayBuffer(1, batch_size=1, sampler=make())
    buffer.extend(numbered(0, [3]))
    assert clocks(buffer.sample().reshape(-1)) == [2]
    assert clocks(buffer.sample(3).reshape(-1)) == [2] * 3


def test_what_the_buffer_cannot_do_changes_nothing():
    buffer, frames = ReplayBuffer(10), numbered(0, [2])
    other = frames.select("observation", "next").set("more", torch.zeros(2))
    other["observation"] = other["observation"].float()
    unlike = r"'collector.traj_ids' is missing, 'more' is new, 'observation' has .*float32 instead of .*new"
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    with pytest.raises(DataError, match="no tensor"):
        buffer.extend(TensorDict({}, [3]))
    with pytest.raises(IndexError, match="frame 0 is not in the buffer, which is empty"):
        buffer[0]
    buffer.extend(frames)
    assert buffer.extend(frames[:0]).tolist() == []
    with pytest.raises(ValueError, match=r"sample\(\) needs a batch size"):
        buffer.sample()
    with pytest.raises(ValueError, match=r"batch_size=2\.5 must be an int, at least 1"):
        buffer.sample(2.5)
    for take in (buffer.extend, buffer.add):
        with pytest.raises(TypeError, match=r"stores TensorDicts, not values of type dict\. Convert them"):
            take({"a": 1})
    with pytest.raises(DataError, match=unlike):
        buffer.extend(other)
    with pytest.raises(DataError, match=r"the key .index."):
        buffer.extend(buffer.sample(2))
    with pytest.raises(ValueError, match="UniformSampler does not use priorities"):
        buffer.update_priority(torch.tensor([0]), torch.tensor([1.0]))
    assert (len(buffer), buffer.write_count) == (2, 2)
    assert clocks(buffer[:]) == [0, 1]


def test_more_frames_than_memory_are_named():
    buffer = ReplayBuffer(10**14, batch_size=1)
    with pytest.raises(OSError, match="Cannot allocate memory") as caught:
        buffer.extend(TensorDict({"a": torch.zeros(1)}, [1]))
    expected = "100000000000000 frames of 4 bytes. Use a lower capacity (trainer.buffer_frames of a run)."
    assert expected in caught.value.__notes__[0]


def test_frames_by_number():
    buffer = ReplayBuffer(10)
    assert buffer[:].batch_size == (0,)
    buffer.extend(numbered(0, [7]))
    buffer.extend(numbered(7, [6]))

    check_whole(buffer[:])
    assert clocks(buffer[:]) == [*range(3, 13)]
    assert clocks(buffer[5:8]) == [5, 6, 7]
    assert clocks(buffer[-4:]) == clocks(buffer[9:100]) == [9, 10, 11, 12]
    assert clocks(buffer[:6:2]) == [4]
    assert clocks(buffer[::-3]) == [12, 9, 6, 3]
    assert buffer[20:].batch_size == buffer[:2].batch_size == (0,)
    assert clocks(buffer[[4, 3]]) == clocks(buffer[torch.tensor([4, 3])]) == [4, 3]
    assert buffer[torch.tensor([[4], [3]])].batch_size == (2, 1)
    assert clocks(buffer[5]) == clocks(buffer[-8]) == clocks(buffer[np.int64(-8)]) == [5]
    assert buffer[5].batch_size == ()
    for absent in (2, 13, -11, [3, 2]):
        with pytest.raises(IndexError, match="which contains the frames 3 to 12"):
            buffer[absent]
    for mask in (True, torch.ones(10, dtype=torch.bool), [0.5]):
        with pytest.raises(TypeError, match="indices must be integers"):
            buffer[mask]
    assert buffer[[]].batch_size == (0,)
    with pytest.raises(TypeError, match=r"cannot be iterated. Use buffer\[:\]"):
        iter(buffer)


def test_a_slice_takes_no_memory_for_frames_that_were_overwritten():
    buffer = ReplayBuffer(10)
    buffer.extend(numbered(0, [13]))
    buffer.load_state_dict(buffer.state_dict() | {"first": 10**12, "write_count": 10**12 + 10})
    assert buffer[:].batch_size == (10,)
    assert clocks(buffer[::-1]) == clocks(buffer[10**12 :: 1])[::-1]
