"""Leased batches: their memory is their consumer's until the last tensor is gone, and then the workers' again."""

import gc
import mmap
import threading
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from user_code.toyworker import batch_spec

from collectx.transport import leases as leases_module
from collectx.transport.leases import Leases
from collectx.transport.slab import Slab

PART = [(0, 0)]


def leases(num_slots=1, num_regions=3):
    return Leases(range(num_slots), [torch.zeros(8, dtype=torch.uint8) for _ in range(num_regions)], is_shared=False)


def deliver(pool, number, slot=0):
    """Fills a slot, and delivers it as a collector does."""
    pool.memory(slot).fill_(number)
    batch = pool.lease(slot)
    pool.release(slot)
    return batch


def test_a_consumer_that_drops_each_batch_for_the_next_one_gets_no_copy():
    pool, batch, places = leases(), None, set()
    for number in range(10):
        batch = deliver(pool, number)
        assert batch.tolist() == [number] * 8
        places.add(batch.data_ptr())
    assert len(places) == 3


def test_batches_that_are_kept_keep_their_bytes():
    pool, lacks = leases(), []
    pool.on_lack = lambda: lacks.append(1)
    kept = [deliver(pool, number) for number in range(4)]
    assert kept[2:] == [None, None]
    assert lacks == [1]
    assert [batch.tolist() for batch in kept[:2]] == [[0] * 8, [1] * 8]
    pool.memory(0).fill_(9)
    assert kept[0].tolist() == [0] * 8
    del kept[0]
    assert deliver(pool, 7).tolist() == [7] * 8


@pytest.mark.parametrize(
    "part", [lambda batch: batch[3:5], lambda batch: batch.numpy()[:1], lambda batch: batch.view(2, 4)]
)
def test_a_part_keeps_the_whole(part):
    pool = leases(num_regions=2)
    kept = part(deliver(pool, 1))
    assert pool.lease(0) is None
    del kept
    assert pool.lease(0) is not None


def test_a_batch_that_another_thread_drops_is_free():
    pool = leases(num_regions=2)
    batches = [deliver(pool, 1)]
    thread = threading.Thread(target=batches.clear)
    thread.start()
    thread.join()
    assert deliver(pool, 2) is not None


def test_a_delivery_that_was_interrupted_can_be_repeated():
    pool = leases(num_regions=2)
    pool.memory(0).fill_(1)
    lost = pool.lease(0)
    again = pool.lease(0)
    del lost
    pool.release(0)
    pool.memory(0).fill_(2)
    assert again.tolist() == [1] * 8
    assert pool.lease(0) is None
    del again
    interrupted = pool.lease(0)
    place = interrupted.data_ptr()
    del interrupted  # before its slot was released, which stays where it is
    pool.release(0)
    assert pool.memory(0).data_ptr() == place
    assert deliver(pool, 3).tolist() == [3] * 8


def test_a_slot_of_no_region_is_released_without_effect():
    pool = leases()
    pool.release(-1)
    assert pool.region_of(0) == 0


def test_closed_memory_is_returned_but_for_batches_that_are_kept():
    memory = Slab(replace(batch_spec(), num_spare=2), shared=True)
    for worker in range(2):
        memory.leases.memory((worker, 0)).fill_(3)
    kept = memory.lease(PART)
    memory.release(PART)
    memory.leases.close()
    assert memory.leases.memory((1, 0)).unique().tolist() == [0]
    assert kept.unique().tolist() == [3]
    reference = weakref.ref(memory)
    del memory
    gc.collect()
    assert reference() is None
    assert kept.unique().tolist() == [3]


def test_without_spare_regions_nothing_is_leased():
    assert Slab(batch_spec(), shared=False).lease(PART) is None


def test_before_a_fork_leased_batches_become_private(monkeypatch):
    """Only those that were released: a worker may not write to them any more."""
    moved = []
    monkeypatch.setattr(leases_module, "_make_private", lambda address, nbytes: moved.append((address, nbytes)))
    pool = leases(num_slots=2, num_regions=5)
    kept, held, gone = deliver(pool, 1), pool.lease(1), deliver(pool, 2)
    del gone
    pool.before_fork()
    assert moved == [(kept.data_ptr(), 8)]
    pool.before_fork()
    assert len(moved) == 1
    # The region of the first is not used again, that of the last one is.
    pool.release(1)
    del kept, held
    assert [*pool._free] == [2, 1]
    assert [pool.slot_in(pool.region_of(slot)) for slot in (0, 1)] == [0, 1]


@pytest.mark.parametrize(("num_regions", "is_discarded"), [(2, False), (3, True)])
def test_memory_is_returned_only_where_there_are_spare_regions(num_regions, is_discarded, monkeypatch):
    calls = []
    monkeypatch.setattr(leases_module, "_libc", lambda: SimpleNamespace(madvise=lambda *what: calls.append(what)))
    for is_shared, advice in ((False, mmap.MADV_DONTNEED), (True, mmap.MADV_REMOVE)):
        regions = [torch.zeros(size, dtype=torch.uint8) for size in (8, 4096, 4097)[:num_regions]]
        Leases(range(2), regions, is_shared).close()
        found = [(address.value, size.value, given) for address, size, given in calls]
        sizes = (4096, 4096, 8192)
        expected = [(each.data_ptr(), size, advice) for each, size in zip(regions, sizes, strict=False)]
        assert found == (expected if is_discarded else [])
        calls.clear()


def test_a_batch_that_is_dropped_after_the_end_returns_its_memory(monkeypatch):
    calls, pool = [], leases()
    monkeypatch.setattr(
        leases_module, "_libc", lambda: SimpleNamespace(madvise=lambda *what: calls.append(what[0].value))
    )
    kept = deliver(pool, 1)
    place = kept.data_ptr()
    pool.close()
    assert len(calls) == 2
    assert place not in calls
    del kept
    assert calls[2:] == [place]
