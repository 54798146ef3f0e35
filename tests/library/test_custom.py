"""A worker's collector may be a class of the user's own: what it yields is what arrives, with the newest weights, and
what cannot be delivered is an error."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import ways
from library_collectors import make
from tensordict.nn import TensorDictModule
from user_code.cartpoles import Constant, cartpole
from user_code.customcollectors import Doubling, Handmade, refuse

from collectx.errors import ConfigError, DataError, WorkerError

TRAJ_IDS, VERSION = ("collector", "traj_ids"), ("collector", "policy_version")
# The same worker code within this process.
SYNC = replace(ways.GLOO_SYNC, name="inline_sync", place="inline", tier="test")
ASYNC = replace(ways.GLOO_ASYNC, name="inline_async", place="inline", tier="test")


def start(cls, way=SYNC, create=cartpole, policy=None, **keywords):
    return make(way, create, policy, collector_class=cls, **{"frames_per_batch": 80, "total_frames": -1} | keywords)


def check_complete(batches):
    """Trajectories of every row go on from batch to batch, each with an id that no other has."""
    frames = torch.cat(list(batches), -1)
    ids, done = frames[TRAJ_IDS], frames["next", "done"][..., 0]
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1])
    goes_on = ~done[:, :-1]
    assert torch.equal(frames["observation"][:, 1:][goes_on], frames["next", "observation"][:, :-1][goes_on])
    assert not set(ids[0].tolist()) & set(ids[1].tolist())
    assert len(ids.unique()) == ids.shape[0] + int(done[:, :-1].sum())


@pytest.mark.parametrize("cls", [Doubling, Handmade])
@ways.over([SYNC, ways.SHARED_SYNC, ways.GLOO_SYNC, ways.RPC_SYNC])
def test_what_it_yields_arrives_complete(way, cls):
    with start(cls, way) as collector:
        batches = [next(collector) for _ in range(4)]
    assert {batch.batch_size for batch in batches} == {torch.Size([2, 40])}
    assert {float(batch["next", "reward"].mean()) for batch in batches} == {1.0 if cls is Handmade else 2.0}
    check_complete(batches)
    assert not batches[0]["done"].any()


def test_it_gets_what_the_keywords_of_the_collector_say():
    made = []

    class Told(Doubling):
        def __init__(self, *arguments, **keywords):
            made.append(keywords)
            super().__init__(*arguments, **keywords)

    told = {"init_random_frames": 121, "max_frames_per_traj": 7, "set_truncated": True}
    own = {"exploration_type": "mode"}
    with start(Told, **told, collector_kwargs=own) as collector:
        next(collector)
    # The random frames are shared by the two workers.
    assert made == [told | {"frames_per_batch": 40, "total_frames": -1, "init_random_frames": 61} | own] * 2


def test_its_seeds_are_the_workers_own_and_orders_and_keywords_reach_it():
    with start(Doubling, max_frames_per_traj=7, collector_kwargs={"reset_at_each_iter": True}) as collector:
        collector.set_seed(5)
        seeded = next(collector)
        collector.reset()
        reset = next(collector)
        collector.set_seed(5)
        repeated = next(collector)
    assert not torch.equal(seeded["observation"][0], seeded["observation"][1])
    assert torch.equal(seeded["observation"], repeated["observation"])
    assert not torch.equal(seeded["observation"], reset["observation"])
    assert seeded["next", "step_count"].max() == 7
    assert not any(batch["step_count"][:, 0].any() for batch in (seeded, reset, repeated))
    assert not set(seeded[TRAJ_IDS].flatten().tolist()) & set(reset[TRAJ_IDS].flatten().tolist())


@pytest.mark.parametrize("cls", [Doubling, Handmade])
def test_the_newest_weights_act(cls):
    with start(cls, ASYNC, policy=Constant(), sync=True) as collector:
        for version, action in enumerate([0, 1, 0]):
            if version:
                collector.update_policy_weights_(Constant(float(action)))
            batch = next(collector)
            assert batch["action"].unique().tolist() == [action]
            assert batch[VERSION].unique().tolist() == [version]


def test_an_order_that_it_cannot_follow_is_an_error():
    with start(Handmade) as collector:
        collector.reset()
        with pytest.raises(NotImplementedError, match=r"Handmade of worker \d has no method reset\(\)"):
            next(collector)


WRONG = {
    "raises": (refuse, {}, ZeroDivisionError, "no collector today"),
    "lacks": (
        Handmade,
        {"drop": ["observation"]},
        DataError,
        r"Handmade of worker .* returned .*observation \[4\] .* is missing",
    ),
    "shape": (
        Handmade,
        {"shape": [2, 20]},
        DataError,
        r"size \[2, 20\], but the trainer expects 40 frames with time as the last dimension",
    ),
    "adds": (Handmade, {"add": ["advantage"]}, DataError, r"advantage \[\] torch.float32 is unexpected"),
    "dtype": (Handmade, {"drop": ["action"], "add": ["action"]}, DataError, r"float32 should be \[\] torch.int64"),
    "ends": (
        Handmade,
        {"last": 1},
        WorkerError,
        "Handmade of worker 0 ended, although it was created with total_frames",
    ),
}


@pytest.mark.parametrize(
    ("way", "wrong"), [*(ways.case(SYNC, name) for name in WRONG), ways.case(ways.GLOO_SYNC, "raises")]
)
def test_a_wrong_one_is_an_error(way, wrong):
    cls, kwargs, error, message = WRONG[wrong]
    with pytest.raises(error, match=message), start(cls, way, collector_kwargs=kwargs, total_frames=160) as collector:
        list(collector)


def test_what_it_cannot_be_called_with_is_refused_before_anything_starts():
    called = r"collector_class=Handmade cannot be called as Handmade\(create_env_fn, .*, max_frames_per_traj=9, first=3"
    with pytest.raises(ConfigError, match=called) as caught:
        start(Handmade, max_frames_per_traj=9, collector_kwargs=[{"last": 3}, {"first": 3}])
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match=r"collector_kwargs\['policy_device'\]='cpq'"):
        start(Handmade, collector_kwargs={"device": "cpu", "policy_device": "cpq"})
    with pytest.raises(ConfigError, match="update_weights_between_steps=True"):
        start(Handmade, update_weights_between_steps=True)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Collector", [2, 40]),
        pytest.param("MultiSyncCollector", [1, 2, 40], marks=pytest.mark.nightly),
    ],
)
def test_those_of_torchrl_run_also_with_processes_of_their_own(name, size):
    cls = getattr(pytest.importorskip("torchrl.collectors"), name)
    create = partial(pytest.importorskip("torchrl.envs").GymEnv, "CartPole-v1", categorical_action_encoding=True)
    inner = {"num_workers": 1, "num_workers_per_collector": 2} if name == "MultiSyncCollector" else {}
    policy = TensorDictModule(Constant(), ["observation"], ["action"])
    with start(cls, ways.GLOO_SYNC, create, policy, max_frames_per_traj=5, **inner) as collector:
        batches = [next(collector) for _ in range(4)]
        policy.module.action.data.fill_(1)
        collector.update_policy_weights_()
        version = collector.policy_version
        while batches[-1][VERSION].min() < version and len(batches) < 200:
            batches.append(next(collector))
    assert {batch.batch_size for batch in batches} == {torch.Size(size)}
    # Each says which of its batches had which weights.
    for batch in batches:
        assert batch["action"].unique().tolist() == [int(batch[VERSION].min() >= version)]
    assert len(batches) < 200
    assert batches[0]["next", "step_count"].max() == 5
    if name == "Collector":
        assert not torch.equal(batches[0]["observation"][0], batches[0]["observation"][1])
        check_complete(batches)
