"""The collectors as a library: TorchRL's names and keywords over the same machinery as the command."""

from __future__ import annotations

import inspect
import re
import time

import gymnasium
import pytest
import torch
from collecting import SYNC, WAYS
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from worlds.cartpoles import Argmax, cartpole

import collectx
from collectx import (
    Collector,
    DistributedCollector,
    DistributedSyncCollector,
    MultiAsyncCollector,
    MultiSyncCollector,
)
from collectx.errors import ShapeError

torch.set_num_threads(1)


def make(kind, create=cartpole, *args, **keywords):
    if kind.startswith(("distributed", "rpc")):
        keywords["launcher"] = "mp"
    if kind != "single":
        create = [create, create] if callable(create) else create
    return WAYS[kind](create, *args, **keywords)


POLICIES = ["none", "module", "tensordict", "callable", "factory"]


# Every policy in this process and in another, every way with one that is pickled by value.
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *((kind, policy) for kind in ("single", "multi_sync") for policy in POLICIES),
        *((kind, "callable") for kind in WAYS if kind not in ("single", "multi_sync")),
        ("multi_async", "none"),
        ("distributed", "factory"),
        ("rpc", "module"),
    ],
)
def test_any_policy_acts_in_any_collector(kind, policy):
    keywords = {}
    given = None
    if policy == "module":
        given = Argmax()
    elif policy == "tensordict":
        given = TensorDictModule(Argmax(), in_keys=["observation"], out_keys=["action"])
    elif policy == "callable":
        given = lambda observation: (observation[:, 2] > 0).long()  # noqa: E731, lambdas must travel too
    elif policy == "factory":
        keywords["policy_factory"] = Argmax
    with make(kind, cartpole, given, frames_per_batch=40, total_frames=120, **keywords) as collector:
        batches = list(collector)
        assert len(collector) == len(batches) == 3
    for batch in batches:
        assert batch.batch_size == ((2, 20) if kind in SYNC else (40,))
        assert batch.names[-1] == "time"
        assert batch["action"].dtype == torch.int64
        if policy == "callable":
            assert torch.equal(batch["action"], (batch["observation"][..., 2] > 0).long())


@pytest.mark.parametrize("kind", WAYS)
def test_a_closure_makes_the_env_and_gets_its_keywords(kind):
    length = 3.5

    def create(reward):
        return gymnasium.wrappers.TransformReward(cartpole(), lambda _: reward * length)

    with make(kind, create, frames_per_batch=20, total_frames=20, create_env_kwargs={"reward": 2.0}) as collector:
        assert collector.next()["next", "reward"].unique().tolist() == [7.0]
        assert collector.next() is None


def test_every_worker_has_its_own_env():
    creates = [
        lambda reward=reward: gymnasium.wrappers.TransformReward(cartpole(), lambda _: reward) for reward in (1.0, 5.0)
    ]
    with MultiSyncCollector(creates, frames_per_batch=20, total_frames=20) as collector:
        rewards = collector.next()["next", "reward"]
    assert [part.unique().tolist() for part in rewards] == [[1.0], [5.0]]


def test_every_worker_has_its_own_policy_factory():
    factories = [lambda action=action: lambda observation: torch.full((len(observation),), action) for action in (0, 1)]
    keywords = {"frames_per_batch": 20, "total_frames": 20}
    with MultiSyncCollector([cartpole] * 2, policy_factory=factories, **keywords) as collector:
        actions = collector.next()["action"]
    assert [part.unique().tolist() for part in actions] == [[0], [1]]


@pytest.mark.parametrize("kind", ["single", "multi_sync", "multi_async", "distributed_sync"])
def test_a_vector_env_gives_rows(kind):
    def create():
        return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")

    with make(kind, create, frames_per_batch=30, total_frames=30) as collector:
        assert collector.next().batch_size == ((2, 3, 5) if kind in SYNC else (3, 10))


def test_frames_are_rounded_up_to_whole_steps_of_all_envs():
    with MultiSyncCollector([cartpole] * 2, frames_per_batch=25, total_frames=50) as collector:
        assert [batch.numel() for batch in collector] == [26, 26]


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *((kind, "policy") for kind in WAYS if kind != "single"),
        ("multi_sync", "state_dict"),
        ("multi_async", "tensordict"),
        ("distributed", "other"),
    ],
)
def test_weights_reach_the_workers(kind, form):
    policy = Argmax()
    with torch.no_grad():
        policy.layer.weight.zero_()
        policy.layer.bias.copy_(torch.tensor([1.0, 0.0]))
    keywords = {"update_interval": -1} if kind == "distributed_sync" else {}
    with make(kind, cartpole, policy, frames_per_batch=20, total_frames=-1, **keywords) as collector:
        assert collector.next()["action"].unique().tolist() == [0]
        other = Argmax()
        with torch.no_grad():
            other.layer.weight.zero_()
            other.layer.bias.copy_(torch.tensor([0.0, 1.0]))
        weights = {
            "policy": None,
            "state_dict": other.state_dict(),
            "tensordict": TensorDict.from_module(other).data,
            "other": other,
        }[form]
        if form == "policy":
            policy.load_state_dict(other.state_dict())
        collector.update_policy_weights_(weights)
        assert collector.policy_version == 1
        # An async worker may have full slots of the version before, or be starting still.
        oldest, deadline = 0, time.monotonic() + 200
        while oldest < 1:
            assert time.monotonic() < deadline
            batch = collector.next()
            newest = batch["collector", "policy_version"].reshape(-1)
            assert torch.equal(batch["action"].reshape(-1), newest)
            oldest = int(newest.min())


@pytest.mark.parametrize(
    ("keywords", "versions"),
    [
        ({}, [0, 1, 2, 3]),
        ({"update_after_each_batch": True}, [0, 1, 2, 3]),
        ({"max_weight_update_interval": 2}, [0, 0, 1, 1]),
        ({"update_interval": 3}, [0, 0, 0, 1]),
        ({"update_interval": -1}, [0, 0, 0, 0]),
        ({"weight_sync_schemes": {"policy": type("NoWeightSyncScheme", (), {})()}}, [0, 0, 0, 0]),
    ],
)
def test_weights_are_published_by_themselves(keywords, versions):
    with DistributedSyncCollector(
        [cartpole] * 2, Argmax(), frames_per_batch=20, total_frames=80, launcher="mp", **keywords
    ) as collector:
        assert [int(batch["collector", "policy_version"].max()) for batch in collector] == versions


@pytest.mark.parametrize("kind", ["single", "multi_sync", "multi_async", "distributed_sync"])
def test_a_batch_is_split_by_trajectory_then_given_to_postproc(kind):
    def postproc(batch):
        assert batch.names == [None, "time"]
        return batch.set("seen", batch["collector", "mask"].clone())

    keywords = {"split_trajs": True, "postproc": postproc}
    with make(kind, frames_per_batch=200, total_frames=400, **keywords) as collector:
        batches = list(collector)
    assert len(batches) == 2
    for batch in batches:
        assert int(batch["seen"].sum()) == 200
        assert batch["collector", "traj_ids"].max(-1).values.unique().numel() == batch.shape[0]


@pytest.mark.parametrize(("how", "size"), [("stack", (2, 3, 5)), (0, (6, 5)), (-1, (3, 10)), (1, (3, 10))])
def test_the_parts_of_workers_are_stacked_or_concatenated(how, size):
    def create():
        return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")

    with MultiSyncCollector([create] * 2, frames_per_batch=30, total_frames=30, cat_results=how) as collector:
        batch = collector.next()
    assert batch.batch_size == size
    assert batch.names[-1] == "time"
    assert batch["collector", "traj_ids"].unique().tolist() == list(range(6))


def test_the_same_tensordict_is_returned():
    with Collector(cartpole, frames_per_batch=20, total_frames=60, return_same_td=True) as collector:
        first = collector.next()
        seen = first["observation"].clone()
        assert collector.next() is first
        assert not torch.equal(first["observation"], seen)


def test_another_tensordict_is_returned_where_it_has_another_shape():
    with Collector(cartpole, frames_per_batch=60, total_frames=300, return_same_td=True, split_trajs=True) as collector:
        assert [int(batch["collector", "mask"].sum()) for batch in collector] == [60] * 5


def test_a_batch_has_the_keys_that_are_asked_for():
    keywords = {"frames_per_batch": 20, "total_frames": 20}
    with Collector(cartpole, track_policy_version=True, track_traj_ids=False, **keywords) as collector:
        batch = collector.next()
    assert ("collector", "traj_ids") not in batch.keys(True)
    assert batch["policy_version"].tolist() == batch["next", "policy_version"].tolist() == [0] * 20


class Frames:
    """A replay buffer of the user's own."""

    def __init__(self, limit=None):
        self.batches = []
        self.limit = limit

    def extend(self, batch):
        if self.limit is not None and len(self.batches) >= self.limit:
            raise OverflowError("full")
        self.batches.append(batch.clone())

    add = extend


@pytest.mark.parametrize("kind", ["single", "multi_sync", "multi_async", "distributed_sync"])
def test_batches_go_into_a_replay_buffer(kind):
    buffer = Frames()
    with make(kind, frames_per_batch=20, total_frames=60, replay_buffer=buffer) as collector:
        assert list(collector) == [None] * 3
        assert collector.replay_buffer is buffer
    # Items are frames, not rows of workers.
    each = 10 if kind in SYNC else 20
    assert [batch.batch_size for batch in buffer.batches] == [(each,)] * (60 // each)


def test_frames_go_into_a_replay_buffer_one_by_one():
    buffer = Frames()
    with Collector(cartpole, frames_per_batch=20, total_frames=20, replay_buffer=buffer, extend_buffer=False) as some:
        list(some)
    assert [batch.batch_size for batch in buffer.batches] == [()] * 20


@pytest.mark.parametrize("kind", ["single", "multi_sync", "multi_async", "distributed", "rpc"])
def test_a_started_collector_fills_its_buffer_in_the_background(kind, wait_until):
    buffer, policy = Frames(), Argmax()
    with make(kind, cartpole, policy, frames_per_batch=20, total_frames=-1, replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: len(buffer.batches) > 3, 60, "batches")
        with pytest.raises(RuntimeError, match="in the background"):
            collector.next()
        with collector.pause():
            count = len(buffer.batches)
            time.sleep(0.05)
            assert len(buffer.batches) == count
        version = collector.increment_version()
        wait_until(lambda: buffer.batches[-1]["collector", "policy_version"].min() >= version, 60, "new weights")
        assert collector.is_running()
        collector.async_shutdown()
        assert not collector.is_running()


def test_a_started_collector_ends_by_itself(wait_until):
    buffer = Frames()
    with Collector(cartpole, frames_per_batch=20, total_frames=60, replay_buffer=buffer) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running(), 60, "the end")
        assert len(buffer.batches) == 3


def test_what_ends_a_started_collector_is_raised_once(wait_until):
    with MultiAsyncCollector([cartpole] * 2, frames_per_batch=20, replay_buffer=Frames(limit=2)) as collector:
        collector.start()
        wait_until(lambda: not collector.is_running(), 60, "the end")
        with pytest.raises(OverflowError, match="full"):
            collector.update_policy_weights_()


def test_start_needs_a_buffer():
    with Collector(cartpole) as collector, pytest.raises(RuntimeError, match="replay_buffer"):
        collector.start()


def test_a_weight_updater_gives_the_weights():
    newest = Argmax()
    with torch.no_grad():
        newest.layer.weight.zero_()
        newest.layer.bias.copy_(torch.tensor([0.0, 1.0]))
    keywords = {"frames_per_batch": 20, "total_frames": 60, "weight_updater": lambda: newest.state_dict()}
    with MultiSyncCollector([cartpole] * 2, Argmax(), update_at_each_batch=True, **keywords) as collector:
        assert [batch["action"].unique().tolist() for batch in collector][1:] == [[1], [1]]


@pytest.mark.ci
@pytest.mark.parametrize("inner", ["sync", "async", MultiSyncCollector])
def test_a_worker_is_a_collector_itself(inner):
    keywords = {"num_workers_per_collector": 2, "collector_class": inner, "launcher": "mp"}
    with DistributedSyncCollector(
        cartpole, frames_per_batch=40, total_frames=80, num_workers=1, **keywords
    ) as collector:
        batch = collector.next()
    assert batch.batch_size == ((1, 40) if inner == "async" else (1, 2, 20))


def test_collector_kwargs_are_of_each_worker():
    own = [
        {"create_env_kwargs": {"sutton_barto_reward": True}, "exploration_type": "MODE"},
        {"create_env_kwargs": {"sutton_barto_reward": False}, "policy_device": "cpu"},
    ]
    with DistributedSyncCollector(
        [cartpole] * 2, frames_per_batch=20, total_frames=20, launcher="mp", collector_kwargs=own
    ) as collector:
        rewards = collector.next()["next", "reward"]
    assert [float(part[0]) for part in rewards] == [0.0, 1.0]


def test_collector_kwargs_may_tell_what_all_workers_do():
    told = {"max_frames_per_traj": 5, "storing_device": "cpu", "reset_at_each_iter": 0}
    with DistributedSyncCollector(
        [cartpole] * 2,
        frames_per_batch=20,
        total_frames=20,
        launcher="mp",
        collector_kwargs=[told, told],
        storing_device=torch.device("cpu"),
    ) as collector:
        assert collector.next()["next", "step_count"].max() == 5


def test_what_has_ended_a_collector_is_raised_again():
    def create():
        env = cartpole()
        env.step = lambda action: 1 / 0
        return env

    with MultiSyncCollector([create] * 2) as collector:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                collector.next()


def test_errors_of_a_worker_keep_their_type():
    def create():
        raise ZeroDivisionError("no env today")

    for kind in WAYS:
        with pytest.raises(ZeroDivisionError, match="no env today"):
            make(kind, create)


def test_workers_with_unequal_groups_are_refused():
    creates = [lambda n=n: gymnasium.make_vec("CartPole-v1", n, vectorization_mode="sync") for n in (2, 3)]
    with (
        MultiSyncCollector(creates, frames_per_batch=40) as collector,
        pytest.raises(ShapeError, match="worker 1 makes 3 envs, worker 0 makes 2"),
    ):
        collector.next()


def test_a_collector_tells_its_keywords():
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


def test_where_batches_lie_may_be_said_for_each_worker_in_other_words():
    devices = {"storing_device": ["cpu", torch.device("cpu")]}
    with MultiSyncCollector([cartpole] * 2, frames_per_batch=20, total_frames=20, **devices) as collector:
        assert collector.next().device == torch.device("cpu")


def test_devices_may_be_given_for_each_worker():
    with MultiSyncCollector(
        [cartpole] * 2, Argmax(), frames_per_batch=20, total_frames=20, policy_device=["cpu", None], device="cpu"
    ) as collector:
        assert collector.next().device == torch.device("cpu")


@pytest.mark.parametrize("kind", ["single", "multi_sync", "multi_async", "distributed", "rpc"])
def test_a_seed_makes_it_what_it_would_be_with_that_seed(kind):
    def first_of_each_env(collector):
        found = {}
        while len(found) < (1 if kind == "single" else 2):
            batch = collector.next()
            rows = zip(
                batch["collector", "traj_ids"].reshape(-1, batch.shape[-1]),
                batch["observation"].reshape(-1, batch.shape[-1], 4),
                strict=True,
            )
            for ids, seen in rows:
                found.setdefault(int(ids[0]) % 2 if kind != "single" else 0, seen)
        return found

    with make(kind, seed=7, frames_per_batch=40, total_frames=-1) as collector:
        expected = first_of_each_env(collector)
    with make(kind, seed=3, frames_per_batch=40, total_frames=-1) as collector:
        assert collector.set_seed(7) != 7
        first = first_of_each_env(collector)
    for env, seen in expected.items():
        assert torch.equal(first[env], seen)


@pytest.mark.parametrize("kind", ["single", "multi_sync", "distributed_sync", "rpc_sync"])
def test_in_mid_run_a_seed_begins_new_trajectories(kind):
    with make(kind, frames_per_batch=40, total_frames=-1) as collector:
        collector.set_seed(11)
        first = collector.next()
        assert collector.set_seed(11, static_seed=True) == 11
        static = collector.next()
        collector.set_seed(11)
        again = collector.next()
        collector.reset()
        fresh = collector.next()
    assert torch.equal(first["observation"], again["observation"])
    assert torch.equal(first["action"], again["action"])
    ids = [set(batch["collector", "traj_ids"].reshape(-1).tolist()) for batch in (first, static, again, fresh)]
    assert len(set.union(*ids)) == sum(map(len, ids))
    if kind != "single":
        assert torch.equal(static["observation"][0, 0], static["observation"][1, 0])
    # A reset env of CartPole is near zero.
    assert all(float(part.abs().max()) < 0.05 for part in fresh["observation"].reshape(-1, fresh.shape[-1], 4)[:, 0])


def test_a_seed_begins_random_actions_anew():
    with Collector(cartpole, frames_per_batch=40, total_frames=-1, init_random_frames=400) as collector:
        collector.set_seed(11)
        first = collector.next()
        collector.set_seed(11)
        again = collector.next()
    assert torch.equal(first["action"], again["action"])


def test_a_seed_must_be_a_number_that_travels():
    with Collector(cartpole) as collector, pytest.raises(ValueError, match="seed=-1: must be at least 0"):
        collector.set_seed(-1)


def test_envs_that_reset_by_themselves_begin_anew_whole():
    def create():
        return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")

    with Collector(create, frames_per_batch=36, total_frames=-1) as collector:
        collector.set_seed(5)
        first = collector.next()
        collector.set_seed(5)
        again = collector.next()
    assert torch.equal(first["observation"], again["observation"])
    assert torch.equal(
        again["collector", "traj_ids"] - first["collector", "traj_ids"] > 0, torch.ones(3, 12, dtype=bool)
    )


@pytest.mark.ci
@pytest.mark.parametrize("inner", ["sync", "async"])
def test_a_seed_reaches_the_workers_of_a_worker(inner):
    keywords = {"num_workers_per_collector": 2, "collector_class": inner, "launcher": "mp", "num_workers": 1}
    with DistributedSyncCollector(cartpole, frames_per_batch=40, total_frames=-1, **keywords) as collector:
        collector.set_seed(5)
        first = collector.next()
        again = first
        collector.set_seed(5)
        deadline = time.monotonic() + 100
        # The worker that was first may be the last this time.
        while not torch.equal(again["observation"], first["observation"]):
            assert time.monotonic() < deadline
            again = collector.next()
