"""Schedules: what is granted at each moment, and what makes a batch. No processes, no memory."""

from dataclasses import replace

import numpy as np
import pytest

from collectx.collector import RecordedBatch
from collectx.schedule.asynchronous import AsyncSchedule, BoundedLagSchedule
from collectx.schedule.recorded import RecordedSchedule, slots_needed
from collectx.schedule.sync import PreemptiveSchedule, SyncSchedule
from collectx.transport.base import Arrival, SlotReport

TALLY = SlotReport(0, 0, 0.0, 0.0, np.zeros(0), np.zeros(0, int))


def arrival(worker, slot=0):
    return Arrival(worker, slot, TALLY)


def arrive(schedule, worker, slot=0):
    """Lets a worker fill a slot; returns the parts of the batch that is complete by that."""
    schedule.arrived(arrival(worker, slot))
    return schedule.next_batch()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_sync_asks_once_and_joins_in_order_of_workers_whoever_comes_first(order):
    schedule = SyncSchedule(3)
    for _ in range(2):
        assert list(schedule.batch_awaited()) == [(0, 0), (1, 0), (2, 0)]
        assert list(schedule.batch_awaited()) == []  # as after a wait that was interrupted
        assert [arrive(schedule, worker) for worker in order] == [None, None, (arrival(0), arrival(1), arrival(2))]


@pytest.mark.parametrize("num_batches", [0, 1, 3, 4, 5, 17])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_async_grants_and_delivers_its_budget_also_without_a_dropped_worker(num_batches, is_dropped):
    schedule, num_delivered = AsyncSchedule(2, 2, num_batches), 0
    granted = list(schedule.batch_awaited())
    # Slot 0 of every worker first, so that a small budget is spread over them.
    assert granted == [(0, 0), (1, 0), (0, 1), (1, 1)][:num_batches]
    assert list(schedule.batch_awaited()) == []
    if is_dropped:
        schedule.dropped(1)
        granted = [grant for grant in granted if grant[0] == 0] + list(schedule.batch_awaited())
    while granted:
        worker, slot = granted.pop(0)
        parts = arrive(schedule, worker, slot)
        assert parts == (arrival(worker, slot),)
        granted += schedule.released(parts)
        num_delivered += 1
    assert num_delivered == num_batches


def test_async_grants_what_is_left_of_its_budget():
    schedule = AsyncSchedule(2, 2, 17)
    schedule.skip(14)
    assert list(schedule.batch_awaited()) == [(0, 0), (1, 0), (0, 1)]


def test_a_bounded_lag_counts_from_the_oldest_slot_that_is_out():
    schedule = BoundedLagSchedule(3, 1, None, wait_for_all=False, max_lag=3)
    assert list(schedule.batch_awaited()) == [(0, 0), (1, 0), (2, 0)]
    for version, worker, granted in ((1, 0, [(0, 0)]), (2, 1, [])):
        parts = arrive(schedule, worker)
        schedule.published(version)
        # Worker 2 still fills its slot with version 0, so one more batch could make that 4 versions old.
        assert list(schedule.released(parts)) == granted


def test_a_replacement_fills_its_slots_with_the_newest_version():
    schedule = BoundedLagSchedule(2, 1, None, wait_for_all=False, max_lag=3)
    assert list(schedule.batch_awaited()) == [(0, 0), (1, 0)]
    for version, granted in ((1, [(0, 0)]), (2, [(0, 0)]), (3, [])):
        parts = arrive(schedule, 0)
        schedule.published(version)
        assert list(schedule.released(parts)) == granted
    assert list(schedule.replaced(1)) == [(1, 0)]
    assert list(schedule.batch_awaited()) == [(0, 0)]


@pytest.mark.parametrize(
    ("threshold", "steps", "expected"),
    [
        (0.5, "0 1 2 3", [True, True, False]),
        (0.51, "0 1 2 3", [True, False]),
        (0.0, "-3 2 0 1", [True, True, False]),
        (1.0, "0 1 2 3", [False]),
        (0.5, "0 -1 -2 3", [True, False]),
    ],
)
def test_a_batch_ends_early_when_the_share_of_its_parts_has_arrived(threshold, steps, expected):
    """A step is a part of that worker, or with a minus its loss."""
    schedule, calls = PreemptiveSchedule(4, threshold), []
    schedule.preempt = calls.append
    schedule.batch_awaited()
    for number in map(int, steps.split()):
        if number < 0:
            schedule.dropped(-number)
        else:
            schedule.arrived(arrival(number))
        assert (schedule.next_batch() is not None) == (calls[-1:] == [False])
    assert calls == expected


@pytest.mark.parametrize(("threshold", "workers", "count"), [(0.56, 25, 14), (0.14, 50, 7), (0.07, 100, 7)])
def test_the_share_of_parts_is_not_rounded_up(threshold, workers, count):
    schedule, calls = PreemptiveSchedule(workers, threshold), []
    schedule.preempt = calls.append
    schedule.batch_awaited()
    for number in range(count):
        assert calls == []
        schedule.arrived(arrival(number))
    assert calls == [True]


def test_sync_goes_on_with_fewer():
    schedule = SyncSchedule(4)
    schedule.dropped(3)
    assert list(schedule.batch_awaited()) == [(0, 0), (1, 0), (2, 0)]
    for worker in (0, 2):
        arrive(schedule, worker)
    schedule.dropped(1)
    assert schedule.next_batch() == (arrival(0), arrival(2))
    assert list(schedule.batch_awaited()) == [(0, 0), (2, 0)]
    # What the next one delivered before it was dropped stays in its batch.
    assert arrive(schedule, 2) is None
    schedule.dropped(2)
    assert schedule.next_batch() is None
    assert arrive(schedule, 0) == (arrival(0), arrival(2))
    assert list(schedule.batch_awaited()) == [(0, 0)]


@pytest.mark.parametrize("exact", [False, True])
def test_async_waits_for_workers_that_never_came_only_where_their_batches_must_not_be_anothers(exact):
    schedule, num_delivered = AsyncSchedule(3, 2, 5, exact), 0
    here = [grant for grant in schedule.batch_awaited() if grant[0] == 0]
    while here and num_delivered < 5:
        parts = arrive(schedule, *here.pop(0))
        here += [grant for grant in [*schedule.released(parts), *schedule.batch_awaited()] if grant[0] == 0]
        num_delivered += 1
        assert len(here) <= 2
    assert (num_delivered, len(here)) == ((2, 0) if exact else (5, 1))


@pytest.mark.parametrize(("num_batches", "granted"), [(None, [(1, 0), (1, 1)]), (3, [(1, 0)])])
def test_a_worker_that_joins_an_async_run_is_granted_its_slots(num_batches, granted):
    schedule = AsyncSchedule(1, 2, num_batches)
    assert list(schedule.batch_awaited()) == [(0, 0), (0, 1)]
    schedule.joined(1)
    assert list(schedule.batch_awaited()) == granted


def test_a_restored_batch_of_an_overlapping_schedule_counts_and_is_delivered_first():
    schedule = SyncSchedule(2, 1, 3)
    schedule.skip(1)
    schedule.published(7)
    schedule.restore((arrival(0, -1), arrival(1, -1)))
    assert schedule.batch_requested() == [(0, 0), (1, 0)]
    assert schedule.version_of(0) == 7
    assert [part.slot for part in schedule.next_batch()] == [-1, -1]
    assert schedule.batch_requested() == []


def test_a_restored_batch_counts_and_its_slot_is_granted_once():
    schedule = AsyncSchedule(1, 2, 3)
    schedule.restore((arrival(0, -1),))
    assert schedule.undelivered() == [(arrival(0, -1),)]
    assert list(schedule.batch_awaited()) == [(0, 1)]
    parts = schedule.next_batch()
    assert list(schedule.released(parts)) == [(0, 0)]
    for slot in (0, 1):
        assert list(schedule.released(arrive(schedule, 0, slot))) == []
    # Its worker is lost, and joins again, before it is released.
    schedule = AsyncSchedule(2, 2, None)
    schedule.restore((arrival(1, -1),))
    parts = schedule.next_batch()
    schedule.dropped(1)
    schedule.joined(1)
    assert sorted(schedule.released(parts)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(("max_lag", "num_granted"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_a_bounded_lag_leaves_room_for_a_publication_after_a_delivery(max_lag, num_granted):
    schedule = BoundedLagSchedule(3, 1, None, wait_for_all=False, max_lag=max_lag)
    grants = list(schedule.batch_awaited())
    assert grants == [(0, 0), (1, 0), (2, 0)][:num_granted]
    parts = arrive(schedule, 0)
    assert list(schedule.released(parts)) == ([(0, 0)] if max_lag == 3 else [])
    assert len(list(schedule.batch_awaited())) == (max_lag < 3)  # no publication came


def test_a_batch_that_is_too_old_is_an_error():
    def arrived(worker, version):
        schedule.arrived(Arrival(worker, 0, replace(TALLY, policy_version=version)))

    schedule = BoundedLagSchedule(3, 1, None, wait_for_all=False, max_lag=2)
    schedule.batch_awaited()
    schedule.published(3)
    for worker, version in ((0, 3), (1, 1), (2, 0)):
        arrived(worker, version)
    assert [schedule.next_batch()[0].worker for _ in range(2)] == [0, 1]
    with pytest.raises(RuntimeError, match="version 0, but version 3 is already published"):
        schedule.next_batch()


def test_a_worker_that_joins_a_sync_run_takes_part_from_the_next_batch_on():
    schedule = SyncSchedule(0)
    assert schedule.next_batch() is None
    schedule.joined(2)
    assert list(schedule.batch_awaited()) == [(2, 0)]
    schedule.joined(0)
    assert list(schedule.batch_awaited()) == []
    assert arrive(schedule, 2) == (arrival(2),)
    schedule.joined(1)
    schedule.joined(3)
    schedule.dropped(3)
    assert sorted(schedule.batch_awaited()) == [(0, 0), (1, 0), (2, 0)]


# --- an async run that is done again ---


def record(text):
    """Returns "worker:acted/newest" for each batch."""
    return [RecordedBatch(*map(int, word.replace(":", "/").split("/"))) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("0:0/0 1:0/1 0:1/2", 1),
        # Two of worker 1 act with the first weights, before the second are there.
        ("0:0/0 1:0/1 1:0/2", 2),
        ("1:0/0 1:1/1 1:2/2", 1),
        # Weights that came late: worker 1 still acts with the first when the fourth are there.
        ("1:0/0 0:0/1 0:1/2 1:0/3 1:0/3", 2),
        ("1:0/0 0:0/1 1:0/1 1:0/2 0:5/5", 2),
        # No weights are published.
        ("1:0/0 0:0/0 1:0/0 1:0/0", 1),
        # One after the other.
        ("1:0/1 1:1/2", 1),
        ("1:0/1 0:1/2 1:1/3 1:1/3", 2),
    ],
)
def test_slots_are_as_many_as_batches_may_be_ahead(text, slots):
    assert slots_needed(record(text)) == slots
    for num_slots, zero_copy, expected in ((1, False, slots), (1, True, slots + 1), (5, True, 5)):
        assert RecordedSchedule(2, num_slots, None, record(text), zero_copy).num_slots == expected


def test_settings_count_like_weights_for_the_slots():
    batches = [RecordedBatch(0, 0, 0, 0, 0), RecordedBatch(1, 0, 0, 0, 1), RecordedBatch(1, 0, 0, 0, 2)]
    assert slots_needed(batches) == 2


def test_a_reproduction_grants_what_its_weights_and_settings_allow():
    again = RecordedSchedule(2, 1, 3, [RecordedBatch(0, 0, 0), RecordedBatch(1, 1, 1, 1, 1)], zero_copy=False)
    assert list(again.batch_awaited()) == []  # there are no weights yet
    assert not again.must_wait_to_publish
    again.published(0)
    assert again.must_wait_to_publish
    assert list(again.batch_awaited()) == [(0, 0)]
    assert again.must_wait_to_publish
    parts = arrive(again, 0)
    again.published(1)
    assert list(again.released(parts)) == []
    again.changed(1)
    assert list(again.batch_awaited()) == [(1, 0)]
    parts = arrive(again, 1)
    # One of three batches is left after the record.
    assert list(again.released(parts)) == [(0, 0)]
    assert list(again.batch_awaited()) == []


def test_batches_of_a_worker_that_is_dropped_are_not_waited_for():
    again = RecordedSchedule(2, 2, None, record("0:0/0 1:0/0 0:0/0 1:0/0"), zero_copy=False)
    again.published(0)
    again.batch_awaited()
    assert arrive(again, 1) is None  # the other one's turn
    again.dropped(1)
    assert again.next_batch() is None
    assert arrive(again, 0) == (arrival(0),)
    assert again.next_batch() == (arrival(1),)
    assert again.must_wait_to_publish
    assert arrive(again, 0, 1) == (arrival(0, 1),)
    assert not again.must_wait_to_publish
    assert list(again.released((arrival(0), arrival(0, 1)))) == [(0, 0), (0, 1)]  # as in any other run


def test_a_reproduction_makes_a_setting_where_it_was_made():
    """Batch 0 of worker 0 without settings; then a setting, after which both workers act with version 0 still."""
    record = [RecordedBatch(0, 0, 0, 0, 0), RecordedBatch(1, 0, 0, 0, 1), RecordedBatch(0, 0, 0, 1, 1)]
    schedule = RecordedSchedule(2, 2, None, record, zero_copy=False)
    schedule.published(0)
    grants = list(schedule.batch_awaited())
    assert sorted(worker for worker, _ in grants) == [0, 1]
    assert schedule.must_wait_to_publish
    for worker, slot in grants:
        schedule.arrived(Arrival(worker, slot, None))
    assert not schedule.must_wait_to_publish
    assert list(schedule.batch_awaited()) == []
    schedule.changed(1)
    assert [worker for worker, _ in schedule.batch_awaited()] == [0]
