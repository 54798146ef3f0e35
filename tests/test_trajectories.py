"""Batches by trajectory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from collectx import split_trajectories


def batch_of(ids: list[list[int]]) -> TensorDict:
    traj_ids = torch.tensor(ids)
    size = traj_ids.shape
    time = torch.arange(traj_ids.numel()).reshape(size)
    return TensorDict({"time": time, "collector": TensorDict({"traj_ids": traj_ids}, size)}, size, names=[None, "time"])


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4), st.permutations(range(16))
)
def test_every_frame_is_in_its_trajectory_in_order(rows, names):
    """Rows of trajectories of these lengths, cut to the shortest row; ids in no order, as workers give them."""
    name = iter(names)
    ids = [[number for length in row for number in [next(name)] * length] for row in rows]
    steps = min(map(len, ids))
    batch = batch_of([row[:steps] for row in ids])
    expected: dict[int, list[int]] = {}
    for number, time in zip(
        batch["collector", "traj_ids"].reshape(-1).tolist(), batch["time"].reshape(-1).tolist(), strict=True
    ):
        expected.setdefault(number, []).append(time)
    split = split_trajectories(batch)
    mask = split["collector", "mask"]
    found = {
        int(row["collector", "traj_ids"][0]): row["time"][kept].tolist()
        for row, kept in zip(split.unbind(0), mask, strict=True)
    }
    assert found == expected
    assert list(found) == sorted(found)
    assert split.shape == (len(expected), max(map(len, expected.values())))
    assert split.names == [None, "time"]
    assert not split["time"][~mask].any()
