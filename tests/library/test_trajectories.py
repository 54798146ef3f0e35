"""Batches by trajectory."""

from __future__ import annotations

from time import sleep

import gymnasium
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from collectx import Collector, MultiAsyncCollector, MultiSyncCollector, ReplayBuffer, split_trajectories
from collectx.errors import ConfigError

torch.set_num_threads(1)


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


WAYS = {"single": Collector, "multi_sync": MultiSyncCollector, "multi_async": MultiAsyncCollector}


def make(kind, **keywords):
    """Envs whose episodes are of 8 frames, with 2 frames of an env in a batch."""

    def create():
        return gymnasium.make_vec(
            "CartPole-v1", 3, vectorization_mode="sync", wrappers=[lambda env: TimeLimit(env, max_episode_steps=8)]
        )

    return WAYS[kind](create if kind == "single" else [create] * 2, frames_per_batch=30, **keywords)


def check_whole(frames):
    """One trajectory, from its first frame to its last."""
    assert len(frames["collector", "traj_ids"].unique()) == 1
    assert torch.equal(frames["next", "observation"][:-1], frames["observation"][1:])
    assert frames["observation"][0].abs().max() < 0.05  # as CartPole begins
    assert frames["next", "done"].flatten().tolist() == [False] * (len(frames) - 1) + [True]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("layout", ["padded", "cat"])
def test_batches_of_whole_trajectories(kind, layout):
    seen = set()
    with make(kind, total_frames=480, trajs_per_batch=4, traj_format=layout) as collector:
        for batch in collector:
            if layout == "padded":
                mask = batch["collector", "mask"]
                assert batch.names == [None, "time"]
                assert not batch["observation"][~mask].any()
                rows = [row[kept] for row, kept in zip(batch.unbind(0), mask, strict=True)]
            else:
                assert batch.names == ["time"]
                ends = batch["next", "done"].flatten().nonzero().flatten() + 1
                rows = batch.split(ends.diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist())
            assert len(rows) == 4
            for row in rows:
                check_whole(row)
                seen.add(int(row["collector", "traj_ids"][0]))
        with pytest.raises(TypeError, match="has no length"):
            len(collector)
    # Every env has ended one at least; of an async collector's workers one may have come too late.
    assert {number % (6 if kind == "multi_sync" else 3) for number in seen} >= {0, 1, 2}
    assert len(seen) >= 40


@pytest.mark.parametrize("kind", WAYS)
def test_whole_trajectories_go_into_a_replay_buffer(kind):
    buffer = ReplayBuffer(1000)
    with make(kind, total_frames=240, trajs_per_batch=4, trajs_per_write=2, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 8
    frames = buffer[torch.arange(buffer.write_count)]
    ends = frames["next", "done"].flatten().nonzero().flatten() + 1
    rows = frames.split(ends.diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist())
    assert len(rows) % 2 == 0
    for row in rows:
        check_whole(row)


@pytest.mark.parametrize("kind", ["single", "multi_sync"])
@pytest.mark.parametrize("at_each", [True, False])
def test_trajectories_that_are_broken_off_are_not_delivered(kind, at_each):
    def create():
        return TimeLimit(gymnasium.make("CartPole-v1"), max_episode_steps=8)

    create = create if kind == "single" else [create] * 2
    keywords = {"frames_per_batch": 40, "total_frames": 400, "trajs_per_batch": 2, "reset_at_each_iter": at_each}
    with WAYS[kind](create, **keywords) as collector:
        for batch in collector:
            for row in batch.unbind(0):
                check_whole(row[row["collector", "mask"]])
            if not at_each:
                collector.reset()
            assert not collector._assembler._under_way


def test_where_a_preempted_worker_has_no_frames_there_is_no_trajectory():
    def create(pause_s):
        env = TimeLimit(gymnasium.make("CartPole-v1"), max_episode_steps=8)
        step = env.step
        env.step = lambda action: sleep(pause_s) or step(action)
        return env

    creates = [lambda: create(0.0), lambda: create(0.005)]
    keywords = {"total_frames": 800, "preemptive_threshold": 0.5, "trajs_per_batch": 2}
    with MultiSyncCollector(creates, frames_per_batch=80, **keywords) as collector:
        for batch in collector:
            for row in batch.unbind(0):
                check_whole(row[row["collector", "mask"]])
        assert -1 not in collector._assembler._under_way
        assert collector.stats()["frames"] < 80 * collector.stats()["batches"]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"trajs_per_batch": 0}, "trajs_per_batch=0: must be at least 1"),
        ({"traj_format": "cat"}, "traj_format='cat' without trajs_per_batch"),
        ({"trajs_per_batch": 2, "traj_format": "list"}, "traj_format='list': must be 'padded' or 'cat'"),
        ({"trajs_per_batch": 2, "return_same_td": True}, "return_same_td=True with trajs_per_batch=2"),
        ({"trajs_per_batch": 2, "track_traj_ids": False}, "track_traj_ids=False with trajs_per_batch=2"),
    ],
)
def test_what_cannot_be_is_said(keywords, message):
    with pytest.raises(ConfigError, match=message):
        make("single", **keywords)


@pytest.mark.parametrize("autoreset", ["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("kind", WAYS)
def test_compact_batches_have_no_observation_below_next(kind, autoreset):
    def create():
        mode = gymnasium.vector.AutoresetMode[autoreset]
        return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})

    create = create if kind == "single" else [create] * 2
    batches = []
    for compact in (False, True):
        with WAYS[kind](create, frames_per_batch=60, total_frames=60, compact_obs=compact) as collector:
            batches.append(collector.next())
            assert set(collector.fake_tensordict().keys(True, True)) == set(batches[-1].keys(True, True))
    full, less = batches
    assert set(full.keys(True, True)) - set(less.keys(True, True)) == {("next", "observation")}
    if kind != "multi_async":
        assert all(torch.equal(less[key], full[key]) for key in less.keys(True, True))


def test_a_collector_has_the_number_that_it_was_given():
    with make("single", worker_idx=3) as collector:
        assert collector.worker_idx == 3
    with make("single") as collector, pytest.raises(RuntimeError, match="worker_idx"):
        collector.worker_idx  # noqa: B018
