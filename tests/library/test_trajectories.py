"""Batches by trajectory; those of whole ones have a model in tests/contract/test_transition_contract.py."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make
from tensordict import TensorDict
from ways import INLINE, INLINE_SYNC, SHARED, SINGLE, over
from worlds.cartpoles import cartpole, cartpoles

from collectx import ReplayBuffer, split_trajectories

LOCAL = (*INLINE, *SHARED)
# Episodes of 8 frames.
short = partial(cartpole, max_episode_steps=8)
shorts = partial(cartpoles, 3, "NEXT_STEP", max_episode_steps=8)


def batch_of(ids: list[list[int]]) -> TensorDict:
    traj_ids = torch.tensor(ids)
    size = traj_ids.shape
    time = torch.arange(traj_ids.numel()).reshape(size)
    return TensorDict({"time": time, "collector": TensorDict({"traj_ids": traj_ids}, size)}, size, names=[None, "time"])


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4), st.permutations(range(16))
)
def test_every_frame_is_in_its_trajectory_in_order(rows, names):
    """Rows of trajectories of these lengths, cut to the shortest row; ids in no order, as workers give them."""
    name = iter(names)
    ids = [[number for length in row for number in [next(name)] * length] for row in rows]
    batch = batch_of([row[: min(map(len, ids))] for row in ids])
    expected: dict[int, list[int]] = {}
    for number, time in zip(batch["collector", "traj_ids"].flatten(), batch["time"].flatten(), strict=True):
        expected.setdefault(int(number), []).append(int(time))
    split = split_trajectories(batch)
    found = {int(row["collector", "traj_ids"][0]): row["time"][row["collector", "mask"]].tolist() for row in split}
    assert list(found.items()) == sorted(expected.items())
    assert split.shape == (len(expected), max(map(len, expected.values())))
    assert split.names == [None, "time"]
    assert not split["time"][~split["collector", "mask"]].any()


def rows_of(frames):
    """Trajectories that lie one after another."""
    ends = frames["next", "done"].flatten().nonzero().flatten() + 1
    return frames.split(ends.diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist())


def check_whole(rows):
    """Each is one trajectory, from its first frame to its last."""
    for frames in rows:
        assert len(frames["collector", "traj_ids"].unique()) == 1
        assert torch.equal(frames["next", "observation"][:-1], frames["observation"][1:])
        assert frames["observation"][0].abs().max() < 0.05  # as CartPole begins
        assert frames["next", "done"].flatten().tolist() == [False] * (len(frames) - 1) + [True]


def test_a_collector_of_whole_trajectories_has_no_length():
    with make(SINGLE, total_frames=200, trajs_per_batch=1) as some, pytest.raises(TypeError, match="has no length"):
        len(some)


@over(LOCAL)
def test_whole_trajectories_go_into_a_replay_buffer(way):
    buffer = ReplayBuffer(1000)
    keywords = {"frames_per_batch": 30, "total_frames": 240, "trajs_per_batch": 4, "trajs_per_write": 2}
    with make(way, shorts, replay_buffer=buffer, **keywords) as collector:
        assert list(collector) == [None] * 8
    rows = rows_of(buffer[torch.arange(buffer.write_count)])
    assert rows
    assert len(rows) % 2 == 0
    check_whole(rows)


@pytest.mark.parametrize(
    ("way", "keywords"),
    [
        *((way, keywords) for way in (SINGLE, INLINE_SYNC) for keywords in ({"reset_at_each_iter": True}, {})),
        (INLINE_SYNC, {"preemptive_threshold": 0.5}),
    ],
    ids=str,
)
def test_trajectories_that_are_broken_off_are_dropped(way, keywords):
    with make(way, short, frames_per_batch=80, total_frames=400, trajs_per_batch=2, **keywords) as collector:
        for batch in collector:
            check_whole(row[row["collector", "mask"]] for row in batch.unbind(0))
            if not keywords:
                collector.reset()
        assert collector.stats()["batches"] >= 5


@pytest.mark.parametrize("autoreset", ["SAME_STEP", "NEXT_STEP"])
@over(LOCAL)
def test_compact_batches_have_no_observation_below_next(way, autoreset):
    batches = []
    for compact in (False, True):
        create = partial(cartpoles, mode=autoreset)
        with make(way, create, frames_per_batch=60, total_frames=60, compact_obs=compact) as collector:
            batches.append(collector.next())
            assert set(collector.fake_tensordict().keys(True, True)) == set(batches[-1].keys(True, True))
    full, less = batches
    assert set(full.keys(True, True)) - set(less.keys(True, True)) == {("next", "observation")}
    if way.is_sync or way is SINGLE:
        assert all(torch.equal(less[key], full[key]) for key in less.keys(True, True))
