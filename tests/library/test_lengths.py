"""Batches whose parts have different numbers of frames: told worker by worker, cut short by others or on demand."""

from __future__ import annotations

import time
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictModule
from torch import nn

from collectx import (
    Collector,
    DistributedSyncCollector,
    MultiAsyncCollector,
    MultiSyncCollector,
    ReplayBuffer,
)
from collectx.errors import ConfigError

torch.set_num_threads(1)


class Clock(gymnasium.Env):
    """Observes how many steps it has made in its life; an episode has seven."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s=0.0):
        self._step_s = step_s
        self._steps = 0

    def _observation(self):
        return np.array([self._steps], np.float64)

    def reset(self, *, seed=None, options=None):
        return self._observation(), {}

    def step(self, action):
        time.sleep(self._step_s)
        self._steps += 1
        return self._observation(), 0.0, self._steps % 7 == 0, False, {}


# Slow enough to make few steps of a batch before a fast one has made all.
slow_clock = partial(Clock, 0.05)


def clocks(num=2, mode=AutoresetMode.SAME_STEP):
    return gymnasium.vector.SyncVectorEnv([Clock] * num, autoreset_mode=mode)


def collect(collector):
    with collector:
        return list(collector)


def check_goes_on(rows):
    """Frames of one env, in order: none is lost or repeated, and episodes end where they do."""
    count = torch.arange(len(rows), dtype=torch.float64)
    assert torch.equal(rows["observation"][:, 0], count)
    assert torch.equal(rows["next", "observation"][:, 0], count + 1)
    assert torch.equal(rows["next", "done"][:, 0], (count + 1) % 7 == 0)
    ids = rows["collector", "traj_ids"]
    assert torch.equal(ids, ids[0] + (ids.max() - ids.min()) // max(1, len(ids.unique()) - 1) * (count // 7).long())


@pytest.mark.parametrize("dim", [0, -1])
def test_each_worker_has_frames_of_its_own(dim):
    frames = {"frames_per_batch": [5, 9], "total_frames": 42}
    collector = MultiSyncCollector([Clock] * 2, cat_results=dim, **frames)
    assert (collector.frames_per_batch, collector.requested_frames_per_batch, len(collector)) == (14, 14, 3)
    assert collector.stats()["requested_frames_per_batch"] == 14
    batches = collect(collector)
    assert [(batch.shape, batch.names) for batch in batches] == [((14,), ["time"])] * 3
    check_goes_on(torch.cat([batch[:5] for batch in batches]))
    check_goes_on(torch.cat([batch[5:] for batch in batches]))


def test_of_several_envs_rounded_up_and_with_random_frames_first():
    policy = TensorDictModule(lambda seen: torch.full(seen.shape[:1], 1), ["observation"], ["action"])
    frames = {"frames_per_batch": [5, 10], "total_frames": 30, "init_random_frames": 15}
    first, second = collect(MultiSyncCollector([clocks] * 2, policy, cat_results=-1, **frames))
    assert (first.shape, first.names) == ((2, 8), [None, "time"])
    assert first["action"].min() == 0
    assert second["action"].min() == 1
    both = torch.cat([first, second], -1)
    for env in both.unbind(0):
        check_goes_on(torch.cat([env[:3], env[8:11]]))
        check_goes_on(torch.cat([env[3:8], env[11:]]))


def test_of_envs_that_spend_steps_on_resets():
    frames = {"frames_per_batch": [4, 8], "total_frames": 12}
    create = partial(clocks, 2, AutoresetMode.NEXT_STEP)
    (batch,) = collect(MultiSyncCollector([create] * 2, cat_results=-1, **frames))
    assert batch.shape == (2, 6)


def test_an_async_batch_has_the_sum_of_them():
    frames = {"frames_per_batch": [5, 9], "total_frames": 42}
    assert [batch.shape for batch in collect(MultiAsyncCollector([Clock] * 2, **frames))] == [(14,)] * 3


class Bell:
    """Rings after the steps of these numbers, counted over all batches."""

    def __init__(self, *at):
        self._at = at
        self._asked = 0

    def collection_stopped(self):
        self._asked += 1
        return self._asked in self._at


def test_an_interruptor_ends_a_batch():
    # It is not asked after a batch's last step.
    batches = collect(Collector(Clock, frames_per_batch=8, total_frames=24, interruptor=Bell(1, 4, 12)))
    assert [len(batch) for batch in batches] == [1, 3, 8, 1, 8, 8]
    check_goes_on(torch.cat(batches))


def test_an_interrupted_batch_of_several_envs_ends_as_any():
    keywords = {"set_truncated": True, "reset_at_each_iter": True, "split_trajs": False}
    batches = collect(Collector(clocks, frames_per_batch=12, total_frames=24, interruptor=Bell(2), **keywords))
    assert [batch.shape for batch in batches] == [(2, 2), (2, 6), (2, 6)]
    for batch in batches:
        assert batch["next", "truncated"][:, -1].all()
        assert not batch["next", "truncated"][:, :-1].any()
    ids = torch.cat([batch["collector", "traj_ids"][0, :1] for batch in batches])
    assert len(ids.unique()) == 3


def test_a_state_is_carried_over_the_place_where_a_batch_was_ended():
    class Sum(nn.Module):
        def forward(self, seen, h):
            return seen[:, 0].long() % 2, h + seen

    policy = TensorDictModule(Sum(), ["observation", "h"], ["action", ("next", "h")])
    policy.initial_state = {"h": torch.zeros(1, dtype=torch.float64)}
    frames = torch.cat(collect(Collector(Clock, policy, frames_per_batch=6, total_frames=12, interruptor=Bell(2))))
    assert frames["next", "h"][:5, 0].tolist() == [0, 1, 3, 6, 10]


def parts_of(batches):
    """The frames of both workers, apart: those of worker w have trajectories w, w + 2, ..."""
    frames = torch.cat([batch.reshape(-1) for batch in batches])
    ids = frames["collector", "traj_ids"]
    return [frames[(ids >= 0) & (ids % 2 == worker)] for worker in range(2)]


@pytest.mark.parametrize("dim", ["stack", -1])
def test_the_faster_workers_do_not_wait(dim):
    creates = [Clock, slow_clock]
    frames = {"frames_per_batch": 80, "total_frames": 160}
    batches = collect(MultiSyncCollector(creates, cat_results=dim, preemptive_threshold=0.5, **frames))
    fast, slow = parts_of(batches)
    assert len(fast) == 40 * len(batches)
    assert len(batches) <= len(slow) < 40 * len(batches)
    assert len(fast) + len(slow) >= 160
    check_goes_on(fast)
    check_goes_on(slow)
    for batch in batches:
        if dim == -1:
            assert 41 <= len(batch) < 80
            continue
        mask = batch["collector", "mask"]
        assert (batch.shape, mask.shape) == ((2, 40), (2, 40))
        assert mask[0].all()
        assert torch.equal(mask[1].sort(descending=True, stable=True).values, mask[1])
        assert torch.equal(batch["collector", "traj_ids"] == -1, ~mask)
        assert all((value[~mask] == 0).all() for key, value in batch.items(True, True) if key[-1] != "traj_ids")


def test_whoever_wants_all_waits_for_all():
    creates = [Clock, partial(Clock, 0.002)]
    frames = {"frames_per_batch": 20, "total_frames": 40}
    batches = collect(MultiSyncCollector(creates, preemptive_threshold=1.0, **frames))
    assert [int(batch["collector", "mask"].sum()) for batch in batches] == [20, 20]


def never():
    raise AssertionError("an env was made")


@pytest.mark.parametrize(
    ("kind", "keywords", "said"),
    [
        (MultiSyncCollector, {"frames_per_batch": [5, 9]}, r"parts of different lengths cannot be stacked: .*cat_res"),
        (MultiSyncCollector, {"frames_per_batch": [5], "cat_results": -1}, "1 entries for 2 workers"),
        (MultiSyncCollector, {"frames_per_batch": [5, 0], "cat_results": -1}, "must be at least 1"),
        (MultiSyncCollector, {"frames_per_batch": [5, 9], "total_frames": 40}, "not a multiple of frames_per_batch=14"),
        (Collector, {"frames_per_batch": [5]}, "must be one number"),
        (DistributedSyncCollector, {"frames_per_batch": [5, 9], "launcher": "mp"}, "must be one number"),
        (Collector, {"interruptor": object()}, "interruptor=object: has no `collection_stopped`"),
        (Collector, {"interruptor": Bell(), "return_same_td": True}, "return_same_td=True with an interruptor"),
        (MultiAsyncCollector, {"preemptive_threshold": 0.5}, "an async batch comes from one worker"),
        (MultiSyncCollector, {"preemptive_threshold": 1.5}, "must be from 0 to 1"),
        (MultiSyncCollector, {"preemptive_threshold": 0.5, "split_trajs": True}, "split_trajs with preemptive"),
        (MultiSyncCollector, {"preemptive_threshold": 0.5, "replay_buffer": ReplayBuffer(9)}, "replay_buffer with pre"),
        (
            MultiSyncCollector,
            {"preemptive_threshold": 0.5, "return_same_td": True, "cat_results": 0},
            "use cat_results='stack'",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(kind, keywords, said):
    creates = never if kind is Collector else [never] * 2
    with pytest.raises(ConfigError, match=said):
        kind(creates, **{"frames_per_batch": 20, **keywords})


@pytest.mark.parametrize("keywords", [{"frames_per_batch": [4, 8]}, {"preemptive_threshold": 0.5}])
def test_parts_of_several_envs_are_joined_along_time_only(keywords):
    with pytest.raises(ConfigError, match="use cat_results=-1"):
        MultiSyncCollector([clocks] * 2, cat_results=0, **keywords)


def test_envs_that_spend_steps_on_resets_cannot_end_a_batch_early():
    with pytest.raises(ConfigError, match="autoreset_mode=disabled or same_step"):
        Collector(partial(clocks, 2, AutoresetMode.NEXT_STEP), frames_per_batch=20, interruptor=Bell(2))


@pytest.mark.parametrize("kind", ["written by the workers", "extended by the trainer"])
def test_a_replay_buffer_gets_the_frames_that_there_are(kind):
    buffer = ReplayBuffer(10_000)
    keywords = {} if kind == "written by the workers" else {"postproc": lambda batch: batch}
    frames = {"frames_per_batch": 80, "total_frames": 160, "cat_results": -1, "preemptive_threshold": 0.5}
    collect(MultiSyncCollector([Clock, slow_clock], replay_buffer=buffer, **frames, **keywords))
    stored = buffer[torch.arange(len(buffer))]
    ids, clock = stored["collector", "traj_ids"], stored["observation"][:, 0]
    assert 160 <= len(buffer) < 240
    for worker in range(2):
        assert torch.equal(clock[ids % 2 == worker], torch.arange((ids % 2 == worker).sum(), dtype=torch.float64))
