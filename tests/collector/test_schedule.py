"""Schedules by tables: what is granted at each moment, and what makes a batch. No processes, no memory."""

from __future__ import annotations

import pytest

from collectx.collector.schedule import AsyncSchedule, SyncSchedule
from collectx.transport.base import Arrival, Tally

TALLY = Tally(0, 0.0, 0.0, 0.0, 0.0, ())


def arrival(worker, slot=0):
    return Arrival(worker, slot, TALLY)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_sync_joins_in_order_of_workers_whoever_comes_first(order):
    schedule = SyncSchedule(3)
    for _ in range(2):
        assert list(schedule.begin()) == [(0, 0), (1, 0), (2, 0)]
        parts = [schedule.arrived(arrival(worker)) for worker in order]
        assert parts[:2] == [None, None]
        assert [part.worker for part in parts[2]] == [0, 1, 2]
        assert list(schedule.released(parts[2])) == []


def test_sync_asks_once_for_a_batch_whose_wait_was_interrupted():
    schedule = SyncSchedule(2)
    assert list(schedule.begin()) == [(0, 0), (1, 0)]
    assert schedule.arrived(arrival(1)) is None
    assert list(schedule.begin()) == []
    assert schedule.arrived(arrival(0)) == (arrival(0), arrival(1))
    assert list(schedule.begin()) == [(0, 0), (1, 0)]


def test_sync_takes_one_joined_slot():
    assert (SyncSchedule(4).joined, SyncSchedule(4).num_slots) == (True, 1)


@pytest.mark.parametrize(
    ("num_workers", "num_slots", "num_batches", "granted_first"),
    [
        (2, 2, None, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        (2, 2, 10, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        (2, 2, 3, [(0, 0), (1, 0), (0, 1)]),
        (3, 2, 2, [(0, 0), (1, 0)]),
        (2, 1, None, [(0, 0), (1, 0)]),
        (2, 2, 0, []),
    ],
)
def test_async_grants_every_slot_once_at_first_as_far_as_the_budget_goes(
    num_workers, num_slots, num_batches, granted_first
):
    schedule = AsyncSchedule(num_workers, num_slots, num_batches)
    assert list(schedule.begin()) == granted_first
    assert list(schedule.begin()) == []


def test_async_delivers_each_arrival_by_itself_and_grants_its_slot_again():
    schedule = AsyncSchedule(2, 2, None)
    schedule.begin()
    parts = schedule.arrived(arrival(1, 1))
    assert parts == (arrival(1, 1),)
    assert list(schedule.released(parts)) == [(1, 1)]


@pytest.mark.parametrize("num_batches", [1, 3, 4, 5, 17])
def test_async_grants_no_more_than_it_delivers(num_batches):
    schedule = AsyncSchedule(2, 2, num_batches)
    outstanding = list(schedule.begin())
    delivered = 0
    while outstanding:
        parts = schedule.arrived(arrival(*outstanding.pop(0)))
        delivered += 1
        outstanding += schedule.released(parts)
    assert delivered == num_batches
