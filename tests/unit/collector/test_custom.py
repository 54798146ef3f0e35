"""A worker's collector may be a class of the user's own: what it yields is what arrives, with the newest weights, and
what cannot be delivered is told.
"""

from __future__ import annotations

import pytest
import torch
import torchrl.collectors
from tensordict.nn import TensorDictModule
from worlds import torchrlenvs
from worlds.customcollectors import Always, Doubling, DoublingAsync, Handmade, cartpole, refuse

from collectx import (
    DistributedCollector,
    DistributedSyncCollector,
    RayCollector,
    RPCCollector,
)
from collectx.errors import ConfigError, ShapeError, WorkerError

TRAJ_IDS, VERSION = ("collector", "traj_ids"), ("collector", "policy_version")


class Theirs(torchrl.collectors.Collector):
    """One of TorchRL's, that changes its batches."""

    def iterator(self):
        for batch in super().iterator():
            batch["next", "reward"] *= 2
            yield batch


def start(cls=DistributedSyncCollector, create=cartpole, **keywords):
    options = {"frames_per_batch": 80, "total_frames": -1, "num_workers": 2, "launcher": "mp"} | keywords
    if cls is RayCollector:
        del options["launcher"]
    return cls(create, **options)


def check_whole(batches):
    """Trajectories of every row go on from batch to batch, each with an id that no other has."""
    frames = torch.cat(list(batches), -1)
    ids, done = frames[TRAJ_IDS], frames["next", "done"][..., 0]
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1])
    goes_on = ~done[:, :-1]
    assert torch.equal(frames["observation"][:, 1:][goes_on], frames["next", "observation"][:, :-1][goes_on])
    assert not set(ids[0].tolist()) & set(ids[1].tolist())
    assert len(ids.unique()) == ids.shape[0] + int(done[:, :-1].sum())


@pytest.mark.parametrize("given", [Doubling, Handmade], ids=["ours", "handmade"])
def test_what_it_yields_arrives_whole(given):
    with start(collector_class=given) as collector:
        batches = [next(collector) for _ in range(4)]
        parts = collector._collector.delivery.parts
    assert {batch.batch_size for batch in batches} == {torch.Size([2, 40])}
    assert {float(batch["next", "reward"].mean()) for batch in batches} == {1.0 if given is Handmade else 2.0}
    check_whole(batches)
    done = batches[-1]["next", "done"][..., 0]
    assert [len(part.lengths) for part in parts] == done.sum(-1).tolist()
    assert not batches[0]["done"].any()


def test_its_seeds_are_each_workers_own_and_the_same_again():
    def begin():
        with start(collector_class=Doubling) as collector:
            return next(collector)

    first, again = begin(), begin()
    assert not torch.equal(first["observation"][0], first["observation"][1])
    assert torch.equal(first["observation"], again["observation"])
    assert torch.equal(first["action"], again["action"])


@pytest.mark.parametrize("given", [Doubling, Handmade], ids=["ours", "handmade"])
def test_the_newest_weights_act(given):
    policy = Always(0)
    with start(DistributedCollector, sync=True, policy=policy, collector_class=given) as collector:
        for version, action in enumerate([0, 1, 0]):
            if version:
                collector.update_policy_weights_({"action": torch.tensor(float(action))})
            batch = next(collector)
            assert batch["action"].unique().tolist() == [action]
            assert batch[VERSION].unique().tolist() == [version]


def test_how_its_episodes_went_is_told():
    with start(DistributedCollector, collector_class=Doubling, num_workers=1) as collector:
        lengths, returns, frames = [], [], 0
        while len(lengths) < 8:
            next(collector)
            part = collector._collector.delivery.parts[0]
            lengths += part.lengths.tolist()
            returns += part.returns.tolist()
            frames += part.frames
    assert returns == [2.0 * length for length in lengths]
    assert 0 <= frames - sum(lengths) < 200


def test_orders_reach_it():
    with start(collector_class=Doubling) as collector:
        collector.set_seed(5)
        first = next(collector)
        collector.reset()
        reset = next(collector)
        collector.set_seed(5)
        again = next(collector)
    assert torch.equal(first["observation"], again["observation"])
    assert not torch.equal(first["observation"], reset["observation"])
    assert not set(first[TRAJ_IDS].flatten().tolist()) & set(reset[TRAJ_IDS].flatten().tolist())


def test_an_order_that_it_cannot_follow_is_told():
    with start(collector_class=Handmade) as collector:
        collector.reset()
        with pytest.raises(NotImplementedError, match=r"worker \d: Handmade has no reset\(\)"):
            next(collector)


WRONG = [
    (refuse, {}, ZeroDivisionError, "no collector today"),
    (
        Handmade,
        {"drop": ["observation", ("next", "truncated")]},
        ShapeError,
        r"Handmade gave .* observation \[4\] torch.float32 is missing; .*next.done \[1\] torch.bool is missing",
    ),
    (Handmade, {"shape": [2, 20]}, ShapeError, r"batch of size \[2, 20\]: the trainer expects 40 frames, time last"),
    (Handmade, {"add": ["advantage"]}, ShapeError, r"advantage \[\] torch.float32 has no place"),
    (
        Handmade,
        {"drop": ["action"], "add": ["action"]},
        ShapeError,
        r"action \[\] torch.float32 should be \[\] torch.int64",
    ),
    (Handmade, {"last": 1}, WorkerError, "Handmade has ended, and was made with total_frames=-1"),
]


@pytest.mark.parametrize(("given", "kwargs", "error", "message"), WRONG)
def test_a_wrong_one_is_told_with_type_and_trace(given, kwargs, error, message):
    with (
        start(collector_class=given, collector_kwargs=kwargs, total_frames=160) as collector,
        pytest.raises(error, match=message) as caught,
    ):
        list(collector)
    assert any("Traceback" in note for note in caught.value.__notes__)


def test_what_it_cannot_be_called_with_is_said_before_anything_starts():
    with pytest.raises(ConfigError) as caught:
        start(collector_class=Handmade, max_frames_per_traj=9, collector_kwargs=[{"last": 3}, {"first": 3}])
    assert [problem.partition("):")[0] for problem in caught.value.problems] == [
        "collector_class=Handmade cannot be called as Handmade(create_env_fn, policy, frames_per_batch=..., "
        f"total_frames=-1, max_frames_per_traj=9, {own}"
        for own in ("last=3", "first=3")
    ]
    with pytest.raises(ConfigError, match=r"collector_class='double'.*or a class of your own"):
        start(collector_class="double")
    with pytest.raises(ConfigError, match="update_weights_between_steps=True"):
        start(collector_class=Handmade, update_weights_between_steps=True)


def test_keywords_reach_it():
    with start(
        collector_class=Doubling, max_frames_per_traj=7, collector_kwargs={"reset_at_each_iter": True}
    ) as collector:
        batch = collector.next()
    assert batch["next", "step_count"].max() == 7
    assert batch["step_count"][:, 0].tolist() == [[0], [0]]


def torchrl_policy():
    return TensorDictModule(Always(0), ["observation"], ["action"])


def test_one_of_torchrls_runs():
    policy = torchrl_policy()
    keywords = {"frames_per_batch": 200, "max_frames_per_traj": 5}
    with start(create=torchrlenvs.cartpole, policy=policy, collector_class=Theirs, **keywords) as collector:
        batches = [next(collector)]
        with torch.no_grad():
            policy.module.action.fill_(1)
        collector.update_policy_weights_()
        batches += [next(collector), next(collector)]
    assert [batch["action"].unique().tolist() for batch in batches] == [[0], [1], [1]]
    assert batches[0]["next", "step_count"].max() == 5
    assert not torch.equal(batches[0]["observation"][0], batches[0]["observation"][1])
    assert {float(batch["next", "reward"].mean()) for batch in batches} == {2.0}
    check_whole(batches)


@pytest.mark.ci
@pytest.mark.parametrize("given", [DoublingAsync, torchrl.collectors.MultiSyncCollector])
def test_one_with_processes_of_its_own_runs(given):
    policy = torchrl_policy()
    keywords = {"num_workers_per_collector": 2, "num_workers": 1}
    with start(create=torchrlenvs.cartpole, policy=policy, collector_class=given, **keywords) as collector:
        batches = [next(collector) for _ in range(4)]
        with torch.no_grad():
            policy.module.action.fill_(1)
        collector.update_policy_weights_()
        version = collector.policy_version
        while batches[-1][VERSION].min() < version and len(batches) < 200:
            batches.append(next(collector))
        batches.append(next(collector))
    is_async = given is DoublingAsync
    assert {batch.batch_size for batch in batches} == {torch.Size([1, 80] if is_async else [1, 2, 40])}
    # One of ours tells which of its batches had which weights.
    for batch in batches:
        assert batch["action"].unique().tolist() == [int(batch[VERSION].min() >= version)]


@pytest.mark.ci
@pytest.mark.parametrize("cls", [RPCCollector, RayCollector])
def test_by_other_ways_too(cls):
    with start(cls, sync=True, collector_class=Handmade) as collector:
        check_whole([next(collector) for _ in range(3)])
