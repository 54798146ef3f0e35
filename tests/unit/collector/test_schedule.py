"""Schedules by tables: what is granted at each moment, and what makes a batch. No processes, no memory."""

from __future__ import annotations

import numpy as np
import pytest

from collectx.collector.schedule import AsyncSchedule, SyncSchedule
from collectx.transport.base import Arrival, Tally

TALLY = Tally(0, 0.0, 0.0, 0.0, 0.0, np.zeros(0), np.zeros(0, int))


def arrival(worker, slot=0):
    return Arrival(worker, slot, TALLY)


def arrive(schedule, worker, slot=0):
    """The parts of the batch that is complete by that."""
    schedule.arrived(arrival(worker, slot))
    return schedule.take()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_sync_joins_in_order_of_workers_whoever_comes_first(order):
    schedule = SyncSchedule(3)
    assert (schedule.joined, schedule.num_slots) == (True, 1)
    for _ in range(2):
        assert list(schedule.begin()) == [(0, 0), (1, 0), (2, 0)]
        parts = [arrive(schedule, worker) for worker in order]
        assert parts[:2] == [None, None]
        assert [part.worker for part in parts[2]] == [0, 1, 2]
        assert list(schedule.released(parts[2])) == []


def test_sync_asks_once_for_a_batch_whose_wait_was_interrupted():
    schedule = SyncSchedule(2)
    assert list(schedule.begin()) == [(0, 0), (1, 0)]
    assert arrive(schedule, 1) is None
    assert list(schedule.begin()) == []
    assert arrive(schedule, 0) == (arrival(0), arrival(1))
    assert list(schedule.begin()) == [(0, 0), (1, 0)]


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
    parts = arrive(schedule, 1, 1)
    assert parts == (arrival(1, 1),)
    assert list(schedule.released(parts)) == [(1, 1)]


def num_delivered(schedule, outstanding):
    """Batches until nothing is granted any more, where all that is granted is filled in order."""
    delivered = 0
    while outstanding:
        parts = arrive(schedule, *outstanding.pop(0))
        delivered += 1
        outstanding += schedule.released(parts)
    return delivered


def test_a_replacement_fills_what_the_lost_worker_owed():
    sync = SyncSchedule(3)
    assert list(sync.replaced(1)) == []
    sync.begin()
    sync.arrived(arrival(0))
    assert list(sync.replaced(0)) == []  # its part is there already
    assert list(sync.replaced(1)) == [(1, 0)]
    free = AsyncSchedule(2, 2, 10)
    free.begin()
    free.arrived(arrival(1, 0))
    assert list(free.replaced(1)) == [(1, 1)]


def test_sync_goes_on_with_fewer():
    schedule = SyncSchedule(3)
    schedule.begin()
    for worker in (0, 2):
        arrive(schedule, worker)
    schedule.dropped(1)
    assert schedule.take() == (arrival(0), arrival(2))
    assert list(schedule.begin()) == [(0, 0), (2, 0)]
    # What the next one delivered before it was dropped stays in its batch.
    assert arrive(schedule, 2) is None
    schedule.dropped(2)
    assert schedule.take() is None
    assert arrive(schedule, 0) == (arrival(0), arrival(2))
    assert list(schedule.begin()) == [(0, 0)]
    # Between two batches.
    other = SyncSchedule(2)
    other.dropped(0)
    assert other.take() is None
    assert list(other.begin()) == [(1, 0)]


@pytest.mark.parametrize("num_batches", [1, 3, 4, 5, 17])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_async_delivers_its_budget_also_without_a_dropped_worker(num_batches, is_dropped):
    schedule = AsyncSchedule(2, 2, num_batches)
    outstanding = list(schedule.begin())
    if is_dropped:
        schedule.dropped(1)
        outstanding = [grant for grant in outstanding if grant[0] == 0] + list(schedule.begin())
    assert num_delivered(schedule, outstanding) == num_batches


def test_async_does_not_grant_the_last_slot_of_a_dropped_worker_again():
    schedule = AsyncSchedule(2, 1, None)
    schedule.begin()
    parts = arrive(schedule, 1)
    schedule.dropped(1)
    assert list(schedule.released(parts)) == []


@pytest.mark.parametrize("num_batches", [3, 5, 8])
def test_async_does_not_wait_for_workers_that_never_come(num_batches):
    schedule = AsyncSchedule(3, 2, num_batches)
    here = [grant for grant in schedule.begin() if grant[0] == 0]
    for _ in range(num_batches - 1):
        parts = arrive(schedule, *here.pop(0))
        here += [grant for grant in [*schedule.released(parts), *schedule.begin()] if grant[0] == 0]
        assert len(here) in (1, 2)
    assert len(here) == 1


def test_async_waits_for_workers_that_never_came_where_their_batches_must_not_be_another_s():
    schedule = AsyncSchedule(2, 1, 3, exact=True)
    schedule.begin()
    parts = arrive(schedule, 0)
    assert list(schedule.released(parts)) == [(0, 0)]
    assert list(schedule.released(arrive(schedule, 0))) == []
    assert list(schedule.begin()) == []


def test_async_waits_for_workers_that_have_come():
    schedule = AsyncSchedule(2, 1, 4)
    schedule.begin()
    for worker in (1, 0):
        parts = arrive(schedule, worker)
        assert list(schedule.released(parts)) == [(worker, 0)]
    schedule.released(arrive(schedule, 0))
    assert list(schedule.begin()) == []
    assert list(schedule.replaced(1)) == [(1, 0)]
    assert list(schedule.begin()) == [(0, 0)]  # the other one has not come yet


def test_a_worker_that_is_added_is_granted_its_slots():
    schedule = AsyncSchedule(1, 2, None)
    assert list(schedule.begin()) == [(0, 0), (0, 1)]
    assert list(schedule.added(1)) == [(1, 0), (1, 1)]
    limited = AsyncSchedule(1, 2, 3)
    assert list(limited.begin()) == [(0, 0), (0, 1)]
    assert list(limited.added(1)) == [(1, 0)]


def test_a_sync_batch_has_a_part_of_a_worker_that_is_added():
    schedule = SyncSchedule(1)
    assert list(schedule.added(1)) == []
    assert list(schedule.begin()) == [(0, 0), (1, 0)]
    assert list(schedule.added(2)) == [(2, 0)]
