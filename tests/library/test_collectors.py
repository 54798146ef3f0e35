"""The collectors as a library: envs, policies, keywords and seeds, over every way."""

import copy
import math
import os
import pickle
import re
import typing
from collections.abc import Iterator
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TransformReward
from library_collectors import by_worker, make
from tensordict import TensorDictBase
from user_code.cartpoles import cartpole, cartpoles, towards
from user_code.faulty import BrokenLever, NotFinite
from ways import (
    BETWEEN_PROCESSES,
    GLOO_SYNC,
    INLINE,
    INLINE_SYNC,
    RAY_ASYNC,
    RAY_SYNC,
    RPC_SYNC,
    SHARED_SYNC,
    SINGLE,
    SYNC,
    WAYS,
    case,
    over,
)

import collectx
from collectx import Collector, DistributedCollector, MultiAsyncCollector, MultiSyncCollector
from collectx.errors import ConfigError, DataError


# Over Ray as it is by default, async.
@over([way for way in WAYS if way is not RAY_SYNC], smoke=True)
def test_closures_make_the_env_from_its_keywords_and_act(way):
    scale, action = 3.5, 1

    def create(reward):
        return TransformReward(cartpole(), lambda _: reward * scale)

    keywords = {"frames_per_batch": 20, "total_frames": 20, "create_env_kwargs": {"reward": 2.0}}
    with make(way, create, lambda seen: torch.full(seen.shape[:-1], action), **keywords) as collector:
        batch = collector.next()
        assert batch["next", "reward"].unique().tolist() == [7.0]
        assert batch["action"].unique().tolist() == [1]
        assert collector.next() is None


@over([SHARED_SYNC, GLOO_SYNC, RPC_SYNC, RAY_ASYNC])
def test_timeouts_may_be_infinite(way):
    names = ("start_timeout_s", "worker_timeout_s", "close_timeout_s", *(["queue_timeout_s"] * (way is RAY_ASYNC)))
    with make(way, frames_per_batch=20, total_frames=40, **dict.fromkeys(names, math.inf)) as collector:
        assert [batch.numel() for batch in collector] == [20, 20]


@pytest.mark.difference("`DistributedSyncCollector`")
@over(SYNC, smoke=True)
def test_every_worker_has_an_env_and_a_policy_factory_of_its_own(way):
    creates = [lambda reward=reward: TransformReward(cartpole(), lambda _: reward) for reward in (1, 5)]
    factories = [lambda action=action: lambda seen: torch.full(seen.shape[:-1], action) for action in (0, 1)]
    with make(way, creates, policy_factory=factories, frames_per_batch=20, total_frames=20) as collector:
        batch = collector.next()
    assert [part.unique().tolist() for part in batch["next", "reward"]] == [[1.0], [5.0]]
    assert [part.unique().tolist() for part in batch["action"]] == [[0], [1]]


@pytest.mark.parametrize("create", [cartpole, cartpoles])
def test_an_env_that_is_passed_itself_is_stepped_and_closed_by_shutdown_alone(create):
    env, closed = create(), []
    env.close = lambda **_: closed.append(True)
    with Collector(env, frames_per_batch=12, total_frames=24) as collector:
        assert collector.env is env
        assert [batch.numel() for batch in collector] == [12, 12]
    assert not closed
    with Collector(env, frames_per_batch=12) as collector:
        assert collector.next().numel() == 12
        collector.shutdown()
    assert closed


@over([SHARED_SYNC], smoke=True)
def test_workers_step_copies_of_an_env_that_is_passed_itself(way):
    env = cartpole()
    with make(way, [env] * 2, frames_per_batch=12) as collector:
        batch = collector.next()
    assert batch.shape == (2, 6)
    assert not torch.equal(batch[0]["observation"], batch[1]["observation"])
    with pytest.raises(ConfigError, match="num_envs=3 cannot be used: create_env_fn is a single env"):
        Collector(env, frames_per_batch=12, num_envs=3)


class OwnCollector(Collector):
    """A class of the user's own."""


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_collector_cannot_be_copied(copied):
    with (
        OwnCollector(cartpole) as collector,
        pytest.raises(TypeError, match=r"^OwnCollector cannot be .* its state_dict\(\)"),
    ):
        copied(collector)


@pytest.mark.difference("constructing a distributed collector")
@over((SINGLE, INLINE_SYNC, *BETWEEN_PROCESSES))
def test_this_process_makes_one_env_to_read_its_spaces(way):
    made, closed = [], []

    def create():
        made.append(os.getpid())
        env = cartpole()
        env.close = lambda: closed.append(os.getpid())
        return env

    with make(way, create, frames_per_batch=20) as collector:
        collector.next()
        # Workers of other processes append to lists of their own.
        num_inline = way.num_workers if way.place == "inline" else 0
        assert made == [os.getpid()] * (1 + num_inline)
        assert closed == [os.getpid()]


@pytest.mark.difference("constructing a distributed collector")
@over((SINGLE, SHARED_SYNC, GLOO_SYNC), smoke=True)
def test_a_policy_is_called_with_observations_of_the_env_alone(way):
    resets, calls = [], []

    def create():
        env = cartpole()
        reset = env.reset
        env.reset = lambda **seed: resets.append(seed) or reset(**seed)
        return env

    def act(observation):
        calls.append(None)
        return towards(observation)

    with make(way, create, act, frames_per_batch=8) as collector:
        collector.next()
    # By the env that tells its spaces, and, where it is in this process, by the worker's.
    assert len(resets) == (2 if way.place == "inline" else 1)
    assert way.place == "inline" or len(calls) == 1


def test_a_trusted_policy_is_called_with_a_tensordict():
    def act(data):
        return data.set("action", towards(data["observation"]))

    with Collector(cartpole, act, trust_policy=True, frames_per_batch=8) as collector:
        batch = collector.next()
    assert torch.equal(batch["action"], towards(batch["observation"]))


@pytest.mark.difference("`split_trajs`")
@over(INLINE)
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


@pytest.mark.parametrize("create", [cartpole, cartpoles, partial(cartpoles, mode="NEXT_STEP")])
def test_what_a_policy_writes_over_an_observation_is_stored(create):
    def act(tensordict):
        tensordict["observation"] = tensordict["observation"] / 2
        return tensordict.set("action", towards(tensordict["observation"]))

    with Collector(create, act, frames_per_batch=60, init_random_frames=60) as collector:
        for factor in (1.0, 0.5):  # of random frames, which the policy does not see, and of its own
            batch = collector.next()
            goes_on = ~batch["next", "done"][..., :-1, 0]
            written, observed = batch["observation"][..., 1:, :], batch["next", "observation"][..., :-1, :]
            assert torch.equal(written[goes_on], observed[goes_on] * factor)


@over((SINGLE, INLINE_SYNC))
@pytest.mark.parametrize(
    ("form", "size"),
    [
        ("env", ()),
        ("num_envs=1", (1,)),
        ("num_envs=2", (2,)),
        ("vector env of 1", (1,)),
        ("vector env of 2", (2,)),
        ("SerialEnv(1)", (1,)),
        ("EnvBase of size (1,)", (1,)),
        ("EnvBase of size (1, 1)", (1, 1)),
        ("EnvBase of size (2, 1)", (2, 1)),
    ],
)
def test_envs_with_a_batch_dimension_keep_it_whatever_its_size(way, form, size):
    keywords, create = {}, cartpole
    if form.startswith("num_envs"):
        keywords["num_envs"] = size[0]
    elif form.startswith("vector"):
        create = partial(cartpoles, *size)
    elif form != "env":
        torchrlenvs = pytest.importorskip("user_code.torchrlenvs", reason="needs the torchrl extra")
        is_serial = form.startswith("Serial")
        create = partial(torchrlenvs.serial, *size) if is_serial else partial(torchrlenvs.Agents, size)
    workers = () if way is SINGLE else (2,)
    frames = 4 * math.prod(workers + size)
    with make(way, create, frames_per_batch=frames, **keywords) as collector:
        assert collector.next().shape == collector.fake_tensordict().shape == (*workers, *size, 4)


@over(INLINE)
def test_the_last_batch_is_whole(way):
    with pytest.warns(
        UserWarning, match=r"total_frames=100 .*frames_per_batch=40, so 3 batches \(120 frames\) are collected"
    ):
        collector = make(way, frames_per_batch=40, total_frames=100)
    with collector:
        assert [batch.numel() for batch in collector] == [40] * len(collector) == [40] * 3


def test_the_same_tensordict_is_returned_unless_the_shape_changes():
    with Collector(cartpole, frames_per_batch=60, return_same_td=True) as collector:
        first = collector.next()
        seen = first["observation"].clone()
        assert collector.next() is first
        assert not torch.equal(first["observation"], seen)
    with Collector(cartpole, frames_per_batch=60, total_frames=300, return_same_td=True, split_trajs=True) as collector:
        assert [int(batch["collector", "mask"].sum()) for batch in collector] == [60] * 5


def test_the_same_tensordict_gets_the_settings_version():
    with Collector(cartpole, frames_per_batch=4, return_same_td=True) as collector:
        first = collector.next()
        collector.set_attr("gravity", 1.0)
        assert collector.next() is first
        assert first["collector", "settings_version"].tolist() == [1] * 4
        collector.set_attr("gravity", 2.0)
        assert collector.next()["collector", "settings_version"].tolist() == [2] * 4


@pytest.mark.ci
@pytest.mark.parametrize(
    ("inner", "size"),
    [("sync", [1, 2, 20]), ("async", [1, 40]), (MultiSyncCollector, [1, 2, 20]), (MultiAsyncCollector, [1, 40])],
)
def test_a_worker_is_a_collector_whose_workers_are_seeded(inner, size, wait_until):
    keywords = {"num_workers": 1, "num_workers_per_collector": 2, "collector_class": inner}
    with make(GLOO_SYNC, frames_per_batch=40, **keywords) as collector:
        collector.set_seed(5)
        first = collector.next()
        assert list(first.batch_size) == size
        if isinstance(inner, str):
            collector.set_seed(5)
            # The worker that was first may be the last this time.
            seen = first["observation"]
            wait_until(lambda: torch.equal(collector.next()["observation"], seen), what="the same batch")


class Level(gymnasium.Wrapper):
    """Rewards its level, in endless episodes."""

    level = 0.0

    def __init__(self):
        super().__init__(cartpole())

    def step(self, action):
        observation, _, _, _, info = self.env.step(action)
        return observation, self.level, False, False, info


@pytest.mark.ci
@pytest.mark.parametrize("inner", ["sync", "async"])
def test_settings_and_resets_reach_a_worker_that_is_a_collector_between_its_batches(inner):
    """An async one has collected batches ahead, with the earlier settings."""
    keywords = {"num_workers": 1, "num_workers_per_collector": 2, "collector_class": inner}
    with make(GLOO_SYNC, Level, frames_per_batch=16, **keywords) as collector:
        collector.next()
        for level in (1, 2, 3):
            collector.set_attr("level", float(level))
            for _ in range(3):
                batch = collector.next()
                assert torch.equal(batch["next", "reward"][..., 0], batch["collector", "settings_version"].float())
        seen = {0, 1}
        for _ in range(3):
            collector.reset()
            first = set(collector.next()["collector", "traj_ids"].flatten().tolist())
            assert not first & seen
            seen |= first | set(collector.next()["collector", "traj_ids"].flatten().tolist())


@pytest.mark.difference("a keyword of the constructor in `collector_kwargs`, such as `max_frames_per_traj`")
@over((GLOO_SYNC, RAY_SYNC))
def test_collector_kwargs_are_of_each_worker_or_of_all(way):
    every = {"max_frames_per_traj": 5, "storing_device": "cpu", "reset_at_each_iter": 0}
    own = [every | {"create_env_kwargs": {"sutton_barto_reward": value}} for value in (True, False)]
    own[1]["policy_device"] = "cpu"
    with make(way, frames_per_batch=20, collector_kwargs=own, storing_device=torch.device("cpu")) as collector:
        batch = collector.next()
    assert [float(part[0]) for part in batch["next", "reward"]] == [0.0, 1.0]
    assert batch["next", "step_count"].max() == 5


# Of other classes the constructor raises what making an env raises (`test_start_up.py`).
@pytest.mark.parametrize(
    ("way", "at"),
    [
        *(case(way, "step") for way in WAYS if way is not RAY_SYNC),
        *(case(way, "create") for way in (*INLINE, RAY_ASYNC)),
        case(RAY_SYNC, "create", tier="ci"),
    ],
)
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


@pytest.mark.difference("NaN or an infinity in an observation, an action or a reward")
@over((SINGLE, INLINE_SYNC, SHARED_SYNC))
@pytest.mark.parametrize(
    ("value", "at", "where"),
    [(math.nan, 3, r"nan in next\.pose \(step 2"), (-math.inf, 0, r"-inf in pose \(step 0")],
)
def test_a_value_that_is_not_finite_is_refused_with_its_place(way, value, at, where):
    last = way.num_workers - 1

    def create(worker):
        values = [1.0, value if worker == last else 1.0]
        return SyncVectorEnv([partial(NotFinite, each, at) for each in values], autoreset_mode="SameStep")

    creates = [partial(create, worker) for worker in range(way.num_workers)]
    creates = creates[0] if way.kind == "single" else creates
    message = rf"^env 1 of worker {last} returned {where} of the batch.*\. Fix the env, .*check_finite"
    with make(way, creates, frames_per_batch=40) as collector, pytest.raises(DataError, match=message):
        collector.next()
    with make(way, creates, frames_per_batch=40, check_finite=False) as collector:
        assert not collector.next()["next", "pose"].isfinite().all() or at == 0


@pytest.mark.difference("NaN or an infinity in an observation, an action or a reward")
@pytest.mark.parametrize("reward", [math.inf, math.nan])
def test_a_reward_that_is_not_finite_is_refused_or_delivered(reward):
    def create():
        return TransformReward(cartpole(), lambda _: reward)

    message = rf"^env 0 of worker 0 returned {reward} in next\.reward \(step 0 of the batch"
    with Collector(create, frames_per_batch=5) as collector, pytest.raises(DataError, match=message):
        collector.next()
    with Collector(create, frames_per_batch=5, check_finite=False) as collector:
        assert not collector.next()["next", "reward"].isfinite().any()


@pytest.mark.parametrize(
    ("asserts", "place"), [(False, r" for env 0 .*\(step 3 of the batch\)\. Fix"), (True, ", and")]
)
def test_an_action_that_is_not_finite_is_the_policys_fault_not_the_envs(asserts, place):
    class Integrates(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Box(-math.inf, math.inf, (1,))

        def reset(self, *, seed=None, options=None):
            self.sum = np.zeros(1, np.float32)
            return self.sum.copy(), {}

        def step(self, action):
            assert not asserts or np.isfinite(action).all(), "invalid action"
            self.sum += action
            return self.sum.copy(), float(self.sum[0]), False, False, {}

    def policy(observation):
        return torch.where(observation == 3, math.nan, 1.0)

    source, rest = (
        ("the policy of", ", and then the env raised") if asserts else ("the policy for env 0 of", r" \(step 3 of")
    )
    where = rf"^{source} worker 0 returned nan in action{rest}"
    with (
        Collector(Integrates, policy, frames_per_batch=8) as collector,
        pytest.raises(DataError, match=where) as caught,
    ):
        collector.next()
    assert ("AssertionError: invalid action" in str(caught.value)) == asserts


@over((SINGLE, INLINE_SYNC))
def test_a_worker_has_several_plain_envs_and_keeps_their_infos(way):
    def create():
        return RecordEpisodeStatistics(cartpole(max_episode_steps=5))

    keywords = {"num_envs": 3, "info_keys": ["episode"], "frames_per_batch": 72, "total_frames": 72}
    with make(way, create, **keywords) as collector:
        (batch,) = list(collector)
    assert batch.shape == ((3, 24) if way is SINGLE else (2, 3, 12))
    done = batch["next", "done"].squeeze(-1)
    assert torch.equal(batch["next", "info", "_episode"], done)
    assert torch.equal(batch["next", "info", "episode", "l"], 5 * done)
    assert not torch.equal(batch["observation"].flatten(0, -3)[0], batch["observation"].flatten(0, -3)[1])


def test_older_names_are_aliases():
    assert collectx.SyncDataCollector is Collector
    assert collectx.MultiaSyncDataCollector is MultiAsyncCollector
    assert collectx.DistributedDataCollector is DistributedCollector
    with pytest.raises(AttributeError, match="NoSuchCollector"):
        collectx.NoSuchCollector  # noqa: B018


def test_what_is_imported_and_typed():
    names: dict = {}
    exec("from collectx import *", names)
    assert names["MultiSyncCollector"] is MultiSyncCollector
    assert typing.get_type_hints(Collector.__iter__)["return"] == Iterator[TensorDictBase]
    with pytest.raises(ValueError, match="frames_per_batch=0"):
        Collector(cartpole, frames_per_batch=0)
    assert issubclass(DataError, ValueError)


@pytest.mark.difference("the seed of an env, by `env.set_seed` before it is passed")
@over((SINGLE, SHARED_SYNC))
def test_collectors_without_a_seed_draw_theirs_from_torchs_generator(way):
    """A script makes a collector per epoch: each collects other episodes, and the next run of the script the same."""
    scripts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        starts = []
        for _ in range(3):
            with make(way, frames_per_batch=20, seed=None) as collector:
                starts.append(tuple(collector.next()["observation"].flatten().tolist()))
        assert len({*starts}) == 3
        scripts.append(starts)
    assert scripts[0] == scripts[1]
    assert not {*scripts[0]} & {*scripts[2]}


@over(WAYS)
def test_set_seed_acts_as_the_keyword_does(way):
    def first_parts(collector):
        found = {}
        while len(found) < way.num_workers:
            for worker, part in by_worker(way, collector.next()):
                found.setdefault(worker, part["observation"])
        return found

    with make(way, seed=7, frames_per_batch=40) as collector:
        expected = first_parts(collector)
    with make(way, seed=3, frames_per_batch=40) as collector:
        assert collector.set_seed(7) != 7
        assert all(torch.equal(expected[worker], seen) for worker, seen in first_parts(collector).items())


def test_set_seed_acts_on_workers_that_are_still_starting():
    starts, keywords = [], {"min_workers": 1, "on_worker_failure": "drop", "frames_per_batch": 40}
    for seed in (7, 3):
        with make(INLINE_SYNC, seed=seed, **keywords) as collector:
            if seed == 3:
                collector.set_seed(7)
            while len(batch := collector.next()) < 2:
                pass
            starts.append(batch["observation"])
    assert torch.equal(*starts)


@pytest.mark.difference("`set_seed`")
@pytest.mark.parametrize(
    ("create", "keywords"),
    [(cartpole, {}), (partial(cartpoles, mode="NEXT_STEP"), {"init_random_frames": 800})],
    ids=["env", "resets by itself, random frames"],
)
@over((SINGLE, *SYNC))
def test_a_seed_in_mid_run_begins_new_trajectories(way, create, keywords):
    with make(way, create, frames_per_batch=72, **keywords) as collector:
        batches = []
        for is_static in (False, True, False):
            assert (collector.set_seed(11, static_seed=is_static) == 11) is is_static
            batches.append(collector.next())
        collector.reset()
        batches.append(collector.next())
    first, static, repeated, fresh = batches
    assert torch.equal(first["observation"], repeated["observation"])
    assert torch.equal(first["action"], repeated["action"])
    ids = [set(batch["collector", "traj_ids"].reshape(-1).tolist()) for batch in batches]
    assert len(set.union(*ids)) == sum(map(len, ids))
    assert len(static["observation"][..., 0, :].reshape(-1, 4).unique(dim=0)) == 1
    assert fresh["observation"][..., 0, :].abs().max() < 0.05  # as CartPole begins
