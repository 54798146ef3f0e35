"""The overlapped sync schedule: which batches are granted early, with which versions. No processes, no memory."""

import numpy as np
import pytest

from collectx.schedule.sync import SyncSchedule
from collectx.transport.base import Arrival, SlotReport


def arrival(worker, slot, version=0):
    return Arrival(worker, slot, SlotReport(version, 1, 0.0, 0.0, np.zeros(0), np.zeros(0, int)))


def fill(schedule, slot, workers=(0, 1)):
    for worker in workers:
        schedule.arrived(arrival(worker, slot))


@pytest.fixture
def schedule():
    schedule = SyncSchedule(2, 1)
    schedule.published(0)
    return schedule


def test_the_next_batch_has_the_weights_from_before_the_last_one_was_requested(schedule):
    assert schedule.batch_requested() == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert schedule.batch_requested() == []  # as after a wait that was interrupted
    versions = [schedule.version_of(0), schedule.version_of(1)]
    for batch in range(1, 6):
        slot = (batch - 1) % 2
        fill(schedule, slot)
        assert [part.slot for part in schedule.next_batch()] == [slot, slot]
        assert schedule.next_batch() is None
        schedule.published(10 * batch)
        schedule.published(10 * batch + 1)  # replaces the one before
        assert schedule.batch_requested() == [(0, slot), (1, slot)]
        versions.append(schedule.version_of(slot))
    assert versions == [0, 0, 11, 21, 31, 41, 51]


def test_a_worker_may_be_a_batch_ahead_and_a_batch_waits_for_all(schedule):
    schedule.batch_requested()
    fill(schedule, 0, [1])
    fill(schedule, 1, [1])
    assert schedule.next_batch() is None
    fill(schedule, 0, [0])
    assert [(part.worker, part.slot) for part in schedule.next_batch()] == [(0, 0), (1, 0)]
    assert schedule.undelivered() == []
    fill(schedule, 1, [0])
    assert [[part.worker for part in parts] for parts in schedule.undelivered()] == [[0, 1]]


def test_no_batch_is_begun_that_will_not_be_delivered():
    schedule = SyncSchedule(2, 1, 2)
    assert len(schedule.batch_requested()) == 4
    fill(schedule, 0)
    assert schedule.next_batch()
    assert schedule.batch_requested() == []
    fill(schedule, 1)
    assert schedule.next_batch()
    # A batch without the parts of dropped workers has fewer frames, so that one more is requested.
    assert schedule.batch_requested() == [(0, 0), (1, 0)]


def test_a_replacement_fills_what_its_predecessor_has_not(schedule):
    schedule.batch_requested()
    assert schedule.replaced(1) == [(1, 0), (1, 1)]
    fill(schedule, 0, [1])
    assert schedule.replaced(1) == [(1, 1)]


def test_a_dropped_worker_is_missing_from_batches_that_it_has_not_filled(schedule):
    schedule.batch_requested()
    fill(schedule, 0, [1])
    schedule.dropped(1)
    fill(schedule, 0, [0])
    assert [part.worker for part in schedule.next_batch()] == [0, 1]
    schedule.joined(2)
    assert schedule.batch_requested() == [(0, 0), (2, 0)]
    fill(schedule, 1, [0])
    assert [part.worker for part in schedule.next_batch()] == [0]


def test_batches_that_lose_all_workers_are_begun_anew_by_others(schedule):
    schedule.batch_requested()
    schedule.dropped(0)
    schedule.dropped(1)
    assert schedule.next_batch() is None
    assert schedule.batch_awaited() == []
    schedule.joined(2)
    assert schedule.batch_awaited() == [(2, 0), (2, 1)]


def test_a_restored_batch_is_delivered_first():
    schedule = SyncSchedule(2, 1, 3)
    schedule.skip(1)
    schedule.published(7)
    schedule.restore((arrival(0, -1, 5), arrival(1, -1, 5)))
    assert schedule.batch_requested() == [(0, 0), (1, 0)]
    assert schedule.version_of(0) == 7
    assert [part.slot for part in schedule.next_batch()] == [-1, -1]
    assert schedule.batch_requested() == []


def test_weights_that_a_worker_may_still_read_are_not_replaced_after_an_interrupted_wait(schedule):
    assert not schedule.must_wait_to_publish
    schedule.batch_requested()
    assert schedule.must_wait_to_publish
    fill(schedule, 0)
    assert not schedule.must_wait_to_publish
