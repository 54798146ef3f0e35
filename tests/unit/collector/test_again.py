"""The schedule of an async run that is reproduced: the same batches in the same order, whoever is ready first."""

from __future__ import annotations

import numpy as np
import pytest

from collectx.collector import Recorded
from collectx.collector.again import AgainSchedule, slots_needed
from collectx.transport.base import Arrival, Tally

TALLY = Tally(0, 0.0, 0.0, 0.0, 0.0, np.zeros(0), np.zeros(0, int))


def record(text):
    """Of "worker:acted/newest" for each batch."""
    return [Recorded(*map(int, word.replace(":", "/").split("/"))) for word in text.split()]


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
