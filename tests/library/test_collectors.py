"""The collectors as a library: envs, policies, keywords and seeds, over every way."""

from __future__ import annotations

import inspect
import os
import re
from functools import partial

import gymnasium
import pytest
import torch
from making import make
from tensordict.nn import TensorDictModule
from ways import (
    BETWEEN_PROCESSES,
    GLOO,
    GLOO_SYNC,
    INLINE,
    INLINE_SYNC,
    RAY_SYNC,
    RPC_SYNC,
    SHARED,
    SINGLE,
    SYNC,
    WAYS,
    over,
)
from worlds.cartpoles import Argmax, cartpole, cartpoles
from worlds.faulty import BrokenLever

import collectx
from collectx import Collector, DistributedCollector, DistributedSyncCollector, MultiAsyncCollector, MultiSyncCollector

POLICIES = {
    "none": {},
    "module": {"policy": Argmax()},
    "tensordict": {"policy": TensorDictModule(Argmax(), in_keys=["observation"], out_keys=["action"])},
    "callable": {"policy": lambda observation: (observation[:, 2] > 0).long()},
    "factory": {"policy_factory": Argmax},
}


@pytest.mark.parametrize("policy", POLICIES)
@over((*INLINE, *SHARED, *GLOO, RPC_SYNC))
def test_any_policy_acts_in_any_collector(way, policy):
    with make(way, frames_per_batch=40, total_frames=120, **POLICIES[policy]) as collector:
        batches = list(collector)
        assert len(collector) == len(batches) == 3
    for batch in batches:
        assert batch.batch_size == ((2, 20) if way.is_sync else (40,))
        assert batch.names[-1] == "time"
        assert batch["action"].dtype == torch.int64
        if policy == "callable":
            assert torch.equal(batch["action"], (batch["observation"][..., 2] > 0).long())


@over(WAYS, smoke=True)
def test_closures_make_the_env_from_its_keywords_and_act(way):
    scale, action = 3.5, 1

    def create(reward):
        return gymnasium.wrappers.TransformReward(cartpole(), lambda _: reward * scale)

    keywords = {"frames_per_batch": 20, "total_frames": 20, "create_env_kwargs": {"reward": 2.0}}
    with make(way, create, lambda seen: torch.full((len(seen),), action), **keywords) as collector:
        batch = collector.next()
        assert batch["next", "reward"].unique().tolist() == [7.0]
        assert batch["action"].unique().tolist() == [1]
        assert collector.next() is None


@over(SYNC)
def test_every_worker_has_an_env_and_a_policy_factory_of_its_own(way):
    creates = [
        lambda reward=reward: gymnasium.wrappers.TransformReward(cartpole(), lambda _: reward) for reward in (1, 5)
    ]
    factories = [lambda action=action: lambda observation: torch.full((len(observation),), action) for action in (0, 1)]
    with make(way, creates, policy_factory=factories, frames_per_batch=20, total_frames=20) as collector:
        batch = collector.next()
    assert [part.unique().tolist() for part in batch["next", "reward"]] == [[1.0], [5.0]]
    assert [part.unique().tolist() for part in batch["action"]] == [[0], [1]]


class Noted(gymnasium.Wrapper):
    """Writes down in which process it was made and closed."""

    def __init__(self, made, closed):
        super().__init__(cartpole())
        self._closed = closed
        made.append(os.getpid())

    def close(self):
        self._closed.append(os.getpid())
        super().close()


@over((SINGLE, INLINE_SYNC, *BETWEEN_PROCESSES))
def test_this_process_makes_one_env_to_read_its_spaces(way):
    made, closed = [], []
    with make(way, lambda: Noted(made, closed), frames_per_batch=20) as collector:
        collector.next()
        # Workers of other processes append to lists of their own.
        num_inline = way.num_workers if way.place == "inline" else 0
        assert made == [os.getpid()] * (1 + num_inline)
        assert closed == [os.getpid()]


@pytest.mark.parametrize(("how", "size"), [("stack", (2, 3, 5)), (0, (6, 5)), (-1, (3, 10)), (1, (3, 10))])
def test_the_parts_of_workers_are_stacked_or_concatenated(how, size):
    # 25 frames are rounded up to whole steps of all envs.
    with make(INLINE_SYNC, cartpoles, frames_per_batch=25, total_frames=50, cat_results=how) as collector:
        batches = list(collector)
    for batch in batches:
        assert batch.batch_size == size
        assert batch.names[-1] == "time"
    assert batches[0]["collector", "traj_ids"].unique().tolist() == list(range(6))


@over(WAYS)
def test_a_batch_is_split_by_trajectory_and_then_passed_to_postproc(way):
    def postproc(batch):
        assert batch.names == [None, "time"]
        return batch.set("seen", batch["collector", "mask"].clone())

    with make(way, frames_per_batch=200, total_frames=400, split_trajs=True, postproc=postproc) as collector:
        batches = list(collector)
    assert len(batches) == 2
    for batch in batches:
        assert int(batch["seen"].sum()) == 200
        assert batch["collector", "traj_ids"].max(-1).values.unique().numel() == batch.shape[0]


def test_the_same_tensordict_is_returned_unless_the_shape_changes():
    with Collector(cartpole, frames_per_batch=60, return_same_td=True) as collector:
        first = collector.next()
        seen = first["observation"].clone()
        assert collector.next() is first
        assert not torch.equal(first["observation"], seen)
    with Collector(cartpole, frames_per_batch=60, total_frames=300, return_same_td=True, split_trajs=True) as collector:
        assert [int(batch["collector", "mask"].sum()) for batch in collector] == [60] * 5


def test_a_batch_has_the_keys_that_its_keywords_name():
    with Collector(cartpole, track_policy_version=True, track_traj_ids=False, frames_per_batch=20) as collector:
        batch = collector.next()
    assert ("collector", "traj_ids") not in batch.keys(True)
    assert batch["policy_version"].tolist() == batch["next", "policy_version"].tolist() == [0] * 20


@pytest.mark.ci
@pytest.mark.parametrize("inner", ["sync", "async", MultiSyncCollector])
def test_a_worker_is_a_collector_whose_workers_are_seeded(inner, wait_until):
    keywords = {"num_workers": 1, "num_workers_per_collector": 2, "collector_class": inner, "launcher": "mp"}
    with DistributedSyncCollector(cartpole, frames_per_batch=40, **keywords) as collector:
        collector.set_seed(5)
        first = collector.next()
        assert first.batch_size == ((1, 40) if inner == "async" else (1, 2, 20))
        if isinstance(inner, str):
            collector.set_seed(5)
            # The worker that was first may be the last this time.
            wait_until(
                lambda: torch.equal(collector.next()["observation"], first["observation"]), what="the same batch"
            )


@over((GLOO_SYNC, RPC_SYNC, RAY_SYNC))
def test_collector_kwargs_are_of_each_worker_or_of_all(way):
    every = {"max_frames_per_traj": 5, "storing_device": "cpu", "reset_at_each_iter": 0}
    own = [
        every | {"create_env_kwargs": {"sutton_barto_reward": True}, "exploration_type": "MODE"},
        every | {"create_env_kwargs": {"sutton_barto_reward": False}, "policy_device": "cpu"},
    ]
    cpu = torch.device("cpu")
    with make(way, frames_per_batch=20, collector_kwargs=own, storing_device=cpu) as collector:
        batch = collector.next()
    assert [float(part[0]) for part in batch["next", "reward"]] == [0.0, 1.0]
    assert batch["next", "step_count"].max() == 5


@pytest.mark.parametrize("at", ["create", "step"])
@over(WAYS)
def test_an_error_in_a_worker_keeps_its_type_and_every_next_raises_it(way, at):
    trainer, made = os.getpid(), []

    def fail(action=None):
        raise BrokenLever("left", 3)

    def create():
        made.append(None)
        env = cartpole()
        if at == "step":
            env.step = fail
        # The first env of this process only tells its spaces.
        elif os.getpid() != trainer or len(made) > 1:
            fail()
        return env

    with make(way, create) as collector:
        for _ in range(2):
            with pytest.raises(BrokenLever) as caught:
                collector.next()
            assert (caught.value.lever, caught.value.force) == ("left", 3)
            assert way.place == "inline" or re.search(r"raised in worker [01]\b", "".join(caught.value.__notes__))


def test_the_signature_and_the_docstring_have_every_keyword():
    keywords = inspect.signature(DistributedSyncCollector).parameters
    assert {"create_env_fn", "frames_per_batch", "device", "split_trajs", "num_workers", "tcp_port"} < set(keywords)
    for name in keywords:
        assert re.search(rf"^    [\w, ]*\b{name}\b[\w, ]*:", DistributedSyncCollector.__doc__ or "", re.MULTILINE), name


def test_older_names_are_aliases():
    assert collectx.SyncDataCollector is Collector
    assert collectx.MultiaSyncDataCollector is MultiAsyncCollector
    assert collectx.DistributedDataCollector is DistributedCollector
    with pytest.raises(AttributeError, match="NoSuchCollector"):
        collectx.NoSuchCollector  # noqa: B018


@over(WAYS)
def test_set_seed_acts_as_the_keyword_does(way):
    def first_part_of_each_worker(collector):
        found = {}
        while len(found) < way.num_workers:
            batch = collector.next()
            for ids, seen in zip(
                batch["collector", "traj_ids"].reshape(-1, batch.shape[-1]),
                batch["observation"].reshape(-1, batch.shape[-1], 4),
                strict=True,
            ):
                found.setdefault(int(ids[0]) % way.num_workers, seen)
        return found

    with make(way, seed=7, frames_per_batch=40) as collector:
        expected = first_part_of_each_worker(collector)
    with make(way, seed=3, frames_per_batch=40) as collector:
        assert collector.set_seed(7) != 7
        first = first_part_of_each_worker(collector)
    assert all(torch.equal(first[worker], seen) for worker, seen in expected.items())


@pytest.mark.parametrize(
    ("create", "keywords"),
    [(cartpole, {}), (partial(cartpoles, mode="NEXT_STEP"), {"init_random_frames": 800})],
    ids=["env", "resets by itself, random frames"],
)
@over((SINGLE, *SYNC))
def test_a_seed_in_mid_run_begins_new_trajectories(way, create, keywords):
    with make(way, create, frames_per_batch=72, **keywords) as collector:
        collector.set_seed(11)
        first = collector.next()
        assert collector.set_seed(11, static_seed=True) == 11
        static = collector.next()
        collector.set_seed(11)
        repeated = collector.next()
        collector.reset()
        fresh = collector.next()
    assert torch.equal(first["observation"], repeated["observation"])
    assert torch.equal(first["action"], repeated["action"])
    ids = [set(batch["collector", "traj_ids"].reshape(-1).tolist()) for batch in (first, static, repeated, fresh)]
    assert len(set.union(*ids)) == sum(map(len, ids))
    begins = [batch["observation"].reshape(-1, batch.shape[-1], 4)[:, 0] for batch in (static, fresh)]
    assert len(begins[0].unique(dim=0)) == 1
    assert begins[1].abs().max() < 0.05  # as CartPole begins
