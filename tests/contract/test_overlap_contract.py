"""`collector.overlap=1`: batches that do not depend on time, over every transport, also after failures and a cut."""

import itertools
import random
from unittest.mock import Mock

import pytest
import torch
import ways
from composed_overrides import composed
from configurations import digest_of, faulty, gym, mlp, start, through_a_file
from ways import over

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import start_collector

_SHAPE = {"overlap": 1, "frames_per_batch": 64, "total_frames": 640, "seed": 3}


def learn(collector, policy, draw=None, num_batches=None):
    """Publishes other weights after every batch, and twice after some; returns the batches' digests and versions."""
    digests, versions = [], []
    for batch in itertools.islice(collector, num_batches):
        number = collector.num_batches - 1
        digests.append(digest_of(batch))
        versions.append(batch["collector", "policy_version"].unique().tolist())
        if draw is not None:
            torch.rand(draw.choice([1, 10_000, 200_000])).sort()  # takes nothing, a millisecond, or many
        for _ in range(1 + number % 2):
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(0.01 * (1 + number))
            collector.publish(policy)
    return digests, versions


def run(kind, place, env, draw=None, **knobs):
    with start(kind, place, env, mlp(), **_SHAPE | knobs) as collector:
        spec = envs.read_spec(env, False)
        return learn(collector, policies.build(mlp(), spec, 3), draw)


@pytest.mark.sample(2)
@over(ways.SYNC, smoke=True)
def test_batches_do_not_depend_on_time(way):
    expected, versions = run("multi_sync", "inline", gym(2))
    # One publication after the batches 0, 2, ..., two after the others: the last one acts in the batch after the next.
    assert versions == [[0], [0], [1], [3], [4], [6], [7], [9], [10], [12]]
    assert run(way.kind, way.place, gym(2), random.Random(way.name)) == (expected, versions)
    plain, _ = run("multi_sync", "inline", gym(2), overlap=0)
    assert plain[0] == expected[0]
    assert not set(plain[2:]) & set(expected)


@pytest.mark.sample(1)
@over([ways.SHARED_SYNC, ways.GLOO_SYNC, ways.RPC_SYNC], smoke=True)
def test_a_killed_worker_is_replaced_with_the_same_batches(way):
    """Replacements act with the versions of the batches that they fill. A part that is lost with its worker is
    collected again by the replacement, in other episodes, so the worker dies only when its last part has left."""
    env = {name: faulty(name, at_step=75, num_envs=2) for name in ("raises", "killed_after_sending")}
    knobs = {"on_worker_failure": "restart", "max_restarts": 20}
    expected = run("multi_sync", "inline", env["raises"], **knobs)
    assert run(way.kind, way.place, env["killed_after_sending"], random.Random(way.name), **knobs) == expected


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["inline", "local"])
@pytest.mark.parametrize("cut", [1, 4])
def test_a_resumed_collector_continues_the_batches(place, cut):
    words = f"collector=multi_sync launcher={place} trainer=meter collector.overlap=1"
    cfg = composed(f"{words} collector.frames_per_batch=64 collector.total_frames=512")
    spec = envs.read_spec(cfg.env, False)
    policy = policies.build(cfg.policy, spec, cfg.seed)
    with start_collector(cfg, policy, spec) as uncut:
        digests = learn(uncut, policy)[0]
    policy = policies.build(cfg.policy, spec, cfg.seed)
    with start_collector(cfg, policy, spec) as first:
        before = learn(first, policy, num_batches=cut)[0]
        state = through_a_file(first.state())
    assert len(state["undelivered"]) == 1
    with start_collector(cfg, policy, spec, resume=state) as second:
        assert second.load(state, cfg.seed) == {}
        assert before + learn(second, policy)[0] == digests


def test_a_worker_that_is_a_collector_acts_with_the_version_of_its_grant():
    with start("distributed_sync", "local", gym(2), mlp(), num_workers_per_collector=2, **_SHAPE) as collector:
        policy = policies.build(mlp(), envs.read_spec(gym(2), False), 3)
        _, versions = learn(collector, policy)
    assert versions == [[0], [0], [1], [3], [4], [6], [7], [9], [10], [12]]


def test_a_batch_that_could_not_be_read_is_delivered_by_the_next_call(monkeypatch):
    expected, _ = run("multi_sync", "inline", gym(2))
    with start("multi_sync", "local", gym(2), mlp(), **_SHAPE) as collector:
        policy = policies.build(mlp(), envs.read_spec(gym(2), False), 3)
        digests = learn(collector, policy, num_batches=3)[0]
        with monkeypatch.context() as patch:
            patch.setattr(collector, "_deliver", Mock(side_effect=MemoryError))
            for _ in range(2):
                with pytest.raises(MemoryError):
                    next(collector)
        assert digests + learn(collector, policy)[0] == expected
