"""Memory for batches: reused when nothing views it any more, and only then."""

import gc

import pytest
import torch

from collectx.memory import BatchMemory

CPU = torch.device("cpu")


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(BatchMemory, "MIN_BYTES", 1000)
    return BatchMemory()


def test_large_memory_is_reused_when_the_last_view_is_freed(memory):
    first = memory.empty(4000, CPU)
    place = first.data_ptr()
    view = first[:16].view(torch.float32)
    array = view.numpy()
    del first, view
    gc.collect()
    other = memory.empty(4000, CPU)
    assert other.data_ptr() != place  # the array still views it
    array[:] = 7.0
    other.zero_()
    assert (array == 7.0).all()
    del array
    assert memory.empty(4000, CPU).data_ptr() == place


@pytest.mark.parametrize("nbytes", [10, 999, 2000])
def test_memory_of_another_size_is_not_reused(memory, nbytes):
    memory.empty(4000, CPU)
    assert memory.empty(nbytes, CPU).numel() == nbytes


def test_a_copy_has_the_same_bytes(memory):
    source = torch.arange(4000, dtype=torch.int64).view(torch.uint8)
    copy = memory.copy(source)
    assert copy.equal(source)
    assert copy.data_ptr() != source.data_ptr()
