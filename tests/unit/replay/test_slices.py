"""Slices against a plain list of what was written."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from user_code.countedframes import Stream, check_whole

from collectx import ReplayBuffer
from collectx.errors import DataError
from collectx.replay import SliceSampler


def places(frames: list[tuple[int, bool]], first: int, length: int) -> set[int]:
    """Numbers of the first frames of all slices; `frames` are (trajectory, done), the oldest numbered `first`."""
    found = set()
    for start in range(len(frames) - length + 1):
        part = frames[start : start + length]
        if len({trajectory for trajectory, _ in part}) == 1 and not any(done for _, done in part[:-1]):
            found.add(first + start)
    return found


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 60),
    length=st.integers(1, 6),
    writes=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 20)), min_size=1, max_size=12),
    envs=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_every_slice_and_no_other(capacity, length, writes, envs):
    buffer = ReplayBuffer(capacity, sampler=SliceSampler(length, seed=0))
    streams = [Stream(envs[0], 0, 4, 4), Stream(envs[1], envs[0], 4, 4)]
    frames: list[tuple[int, bool]] = []
    for worker, steps in writes:
        batch = streams[worker].take(steps)
        buffer.extend(batch)
        columns = (batch[key].reshape(-1).tolist() for key in (("collector", "traj_ids"), ("next", "done")))
        frames += zip(*columns, strict=True)
        first = max(0, len(frames) - capacity)
        expected = places(frames[first:], first, length)
        if not expected:
            with pytest.raises(ValueError, match=f"no trajectory in the buffer has slice_len={length} consecutive"):
                buffer.sample(length)
            continue
        sample = buffer.sample(200 * length)
        assert sample.batch_size == (200, length)
        assert sample.names == [None, "time"]
        assert sample["next"].names == [None, "time"]
        check_whole(sample)
        starts = sample["index"][:, 0]
        assert torch.equal(sample["index"], starts[:, None] + torch.arange(length))
        assert set(starts.tolist()) <= expected
        if len(expected) <= 8:  # each is missed with a probability of (7/8)**200 = 2.5e-12
            assert set(starts.tolist()) == expected
        heads = sample["observation"][..., :3]
        assert torch.equal(heads[..., :2], heads[:, :1, :2].expand(-1, length, -1))
        assert torch.equal(heads[..., 2], heads[:, :1, 2] + torch.arange(length))


def test_a_seed_draws_the_same_slices_in_every_version():
    """Runs that were recorded by earlier versions can be reproduced."""
    buffer = ReplayBuffer(1000, sampler=SliceSampler(3, seed=5))
    buffer.extend(Stream(2, 0, 6, 4).take(100))
    drawn = [buffer.sample(12)["index"][:, 0].tolist() for _ in range(2)]
    assert drawn == [[132, 159, 159, 92], [193, 55, 75, 80]]


def test_rare_slices_are_found():
    """One in ten thousand frames ends a slice: chance alone would hardly find it."""
    buffer = ReplayBuffer(20_000, sampler=SliceSampler(8, seed=0))
    buffer.extend(Stream(1, 0, 6, 4).take(19_992))
    buffer.extend(Stream(1, 2, 6, 4).take(8))
    sample = buffer.sample(80)
    assert sample["index"].unique().tolist() == list(range(19_992, 20_000))


def test_mistakes_are_named():
    buffer = ReplayBuffer(100, sampler=SliceSampler(4))
    batch = Stream(1).take(20)
    with pytest.raises(DataError, match=r"SliceSampler needs 'collector\.traj_ids' and 'next\.done'"):
        buffer.extend(TensorDict({"observation": batch["observation"]}, batch.batch_size))
    twice = batch.clone()
    twice["next", "done"] = batch["next", "done"].expand(-1, -1, 2)
    with pytest.raises(DataError, match=r"one value of 'next\.done' per frame, but its shape is \(2,\)"):
        buffer.extend(twice)
    # What was refused has not settled what frames are.
    buffer.extend(batch)
    with pytest.raises(ValueError, match=r"batch_size=10 .*10 / 4 = 2.50\)\. Use 8 or 12"):
        buffer.sample(10)
    with pytest.raises(ValueError, match=r"batch_size=3 .* Use 4\."):
        buffer.sample(3)
    assert np.prod(buffer.sample(12).batch_size) == 12
