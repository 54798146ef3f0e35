"""Large observations that frames share, against what was written."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from user_code.countedframes import LARGE, Stream, check_whole

from collectx import ReplayBuffer
from collectx.trainer.off_policy import NstepWriter


def num_stored(buffer):
    """Returns how many observations the buffer stores, with those that are no longer in use."""
    return len(buffer.state_dict()["pools"]["values"]["observation"])


def same(frames, expected):
    """Whether the frames of a buffer are those of a batch."""
    return all(torch.equal(frames[key], expected[key]) for key in expected.keys(True, True))


@settings(max_examples=30)
@given(
    capacity=st.integers(1, 40),
    steps=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    num_envs=st.integers(1, 3),
    restored=st.integers(1, 60),
)
def test_frames_are_those_that_were_written(capacity, steps, num_envs, restored):
    buffer, stream, written = ReplayBuffer(capacity), Stream(num_envs, size=LARGE), []
    for count in steps:
        batch = stream.take(count)
        written.append(batch.reshape(-1))
        buffer.extend(batch)
        assert same(buffer[:], torch.cat(written)[-capacity:])
    other = ReplayBuffer(restored)
    other.load_state_dict(buffer.state_dict())
    expected = torch.cat(written)[-capacity:]
    assert same(other[:], expected[-restored:])
    other.extend(stream.take(3))
    check_whole(other.sample(50))


@pytest.mark.parametrize(("num_steps", "batch_steps"), [(1, 100), (3, 100), (1, 1), (1, 7)])
def test_a_transition_takes_the_memory_of_about_one_image(num_steps, batch_steps):
    buffer = ReplayBuffer(1000)
    writer = NstepWriter(buffer, ["observation"], 0.99, num_steps)
    stream = Stream(4, shortest=50, size=LARGE)
    for _ in range(1000 // batch_steps):
        batch = stream.take(batch_steps)
        batch["action"] = torch.zeros(4, batch_steps)
        batch["next", "terminated"] = batch["next", "done"]
        writer.extend(batch)
    assert len(buffer) == 1000
    # The ends of an episode and of a batch have observations of their own.
    assert num_stored(buffer) < 1100
    assert buffer.nbytes < 1000 * (LARGE * 8 + 200) + 2**17


def test_places_are_used_again():
    buffer, stream = ReplayBuffer(64), Stream(2, size=LARGE)
    for _ in range(50):
        buffer.extend(stream.take(8))
    # One observation for each frame, and one for each end of an episode.
    assert num_stored(buffer) < 90


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.bool])
def test_images_of_every_dtype(dtype):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (6, 3, 32, 32))).to(dtype)
    data = {"image": images[:5], "next": {"image": images[1:], "vector": torch.zeros(5, 3)}, "vector": torch.ones(5, 3)}
    buffer = ReplayBuffer(8)
    buffer.extend(TensorDict(data, [5]))
    assert same(buffer[:], TensorDict(data, [5]))
    assert len(buffer.state_dict()["pools"]["values"]["image"]) == 6


def test_an_image_without_a_next_one_of_its_shape_is_stored_as_it_is():
    frames = TensorDict({"image": torch.rand(4, 3, 32, 32), "next": {"image": torch.rand(4, 3, 16, 16)}}, [4])
    buffer = ReplayBuffer(8)
    buffer.extend(frames)
    assert same(buffer[:], frames)
    assert buffer.state_dict()["pools"] == {"values": {}, "places": {}}
