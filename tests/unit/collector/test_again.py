"""An async run done again: the same batches in the same order, whoever is ready first this time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from collecting import config, gym, mlp

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import Recorded, build
from collectx.collector.again import AgainSchedule, slots_needed
from collectx.run.digest import digest_of
from collectx.transport.base import Arrival, Tally

TALLY = Tally(0, 0.0, 0.0, 0.0, 0.0, np.zeros(0), np.zeros(0, int))


def record(text):
    """Of "worker:acted/newest" for each batch."""
    found = []
    for word in text.split():
        worker, versions = word.split(":")
        found.append(Recorded(int(worker), *map(int, versions.split("/"))))
    return found


def arrival(worker, slot=0):
    return Arrival(worker, slot, TALLY)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("0:0/0 1:0/1 0:1/2", 1),
        # Two of worker 1 act with the first weights, before the second are there.
        ("0:0/0 1:0/1 1:0/2", 2),
        ("1:0/0 1:1/1 1:2/2", 1),
        # Weights that came late: worker 1 still acts with the first when the fourth are there.
        ("1:0/0 0:0/1 0:1/2 1:0/3 1:0/3", 3),
    ],
)
def test_slots_are_as_many_as_batches_may_be_ahead(text, slots):
    assert slots_needed(record(text)) == slots


def test_batches_wait_for_their_turn_and_weights_for_batches():
    again = AgainSchedule(2, 2, None, record("1:0/0 0:0/1 1:1/2 0:2/2"), lent=False)
    assert (again.newest, again.joined) == (True, False)
    again.published(0)
    assert list(again.begin()) == [(0, 0), (1, 0)]
    again.arrived(arrival(0))
    assert again.take() is None
    assert again.holds_back
    again.arrived(arrival(1))
    assert not again.holds_back
    first = again.take()
    assert first == (arrival(1),)
    assert list(again.released(first)) == []
    again.published(1)
    assert again.holds_back
    assert list(again.begin()) == [(1, 1)]
    second = again.take()
    assert second == (arrival(0),)
    again.released(second)
    again.arrived(arrival(1, 1))
    assert not again.holds_back
    again.published(2)
    assert list(again.begin()) == [(0, 1)]
    assert again.take() == (arrival(1, 1),)
    again.arrived(arrival(0, 1))
    assert again.take() == (arrival(0, 1),)
    # From here on as any other.
    assert not again.holds_back
    assert set(again.begin()) == {(0, 0), (1, 0)}
    again.arrived(arrival(0))
    assert again.take() == (arrival(0),)


def test_batches_of_a_worker_that_is_dropped_are_left_out():
    again = AgainSchedule(2, 1, None, record("0:0/0 1:0/0 0:0/0 1:0/0"), lent=False)
    again.published(0)
    again.begin()
    again.arrived(arrival(1))
    again.dropped(1)
    assert again.take() is None
    again.arrived(arrival(0))
    assert [again.take(), again.take()] == [(arrival(0),), (arrival(1),)]
    again.arrived(arrival(0, 1))
    assert again.take() == (arrival(0, 1),)


def is_enough(found):
    """Whether a run has shown what is to be seen: both workers, and weights that are older than the newest."""
    counts = [sum(batch.worker == worker for batch in found) for worker in (0, 1)]
    return min(counts) >= 8 and sum(batch.acted < batch.newest for batch in found) >= 4


def delivered(cfg, again=None):
    """Digests and record of a run whose policy learns something from every batch, of as many batches as `again` has."""
    spec = envs.read_spec(cfg.env)
    policy = policies.build(cfg.policy, spec, cfg.seed)
    digests, found = [], []
    with build(cfg, policy, spec, again=again) as collector:
        while len(found) < len(again) if again else not is_enough(found):
            batch = next(collector)
            delivery = collector.delivery
            digests.append(digest_of(batch))
            found.append(Recorded(delivery.parts[0].worker, delivery.parts[0].policy_version, delivery.version))
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter += 0.1 * batch["observation"].mean()
            collector.publish(policy)
    return digests, found


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("multi_async", "local"),
        ("distributed", "local"),
        pytest.param("rpc", "local", marks=pytest.mark.ci),
        pytest.param("ray", "ray", marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize("zero_copy", [False, True])
def test_the_same_batches_with_the_same_weights(kind, place, zero_copy):
    shape = {"frames_per_batch": 32, "total_frames": -1, "zero_copy": zero_copy}
    cfg = config(kind, place, gym(2, entry_point="worlds.uneven:Uneven"), mlp(), **shape)
    digests, found = delivered(cfg)
    assert delivered(cfg, found) == (digests, found)
