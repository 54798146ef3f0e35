"""Leased batches: their memory is their consumer's until the last tensor is gone, and then the workers' again."""

import gc
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from user_code.toyworker import batch_spec

from collectx.transport.base import Arrival
from collectx.transport.leases import Leases
from collectx.transport.slab import Slab

PART = [Arrival(0, 0, None)]


def leases():
    return Leases(range(1), [torch.zeros(8, dtype=torch.uint8) for _ in range(2)], is_shared=False)


def deliver(pool, number, slot=0):
    """Fills a slot, and delivers it as a collector does."""
    pool.memory(slot).fill_(number)
    batch = pool.lease(slot)
    pool.release(slot)
    return batch


@pytest.mark.parametrize(
    "part", [lambda batch: batch[3:5], lambda batch: batch.numpy()[:1], lambda batch: batch.view(2, 4)]
)
def test_a_part_keeps_the_whole(part):
    pool = leases()
    kept = part(deliver(pool, 1))
    assert pool.lease(0) is None
    del kept
    assert pool.lease(0) is not None


def test_a_batch_that_another_thread_drops_is_free():
    pool = leases()
    batches = [deliver(pool, 1)]
    thread = threading.Thread(target=batches.clear)
    thread.start()
    thread.join()
    assert deliver(pool, 2) is not None


def test_a_delivery_that_was_interrupted_can_be_repeated():
    pool = leases()
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
