"""Layouts put every leaf on its own aligned place; a slot's views and TensorDicts share its memory, shaped right."""

from __future__ import annotations

import pytest
import torch

from collectx.batch import ALIGNMENT_BYTES, Layout, Leaf, batch_leaves, to_tensordict

OBSERVATION = Leaf(("observation",), (3,), torch.float32)
ACTION = Leaf(("action",), (), torch.int64)
LEAVES = batch_leaves([OBSERVATION], [ACTION])


def filled(layout: Layout):
    """A slot in which every leaf holds different bytes everywhere."""
    memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
    slot = layout.slot(memory)
    for number, tensor in enumerate(slot.tensors.values()):
        values = torch.arange(tensor.numel()) + 7 * number
        tensor.copy_((values % 2 if tensor.dtype is torch.bool else values).view(tensor.shape))
    return memory, slot


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (OBSERVATION, r"two leaves of the batch have the key \('observation',\)"),
        (Leaf(("observation", "camera"), (), torch.uint8), "is a tensor and also holds"),
    ],
)
def test_keys_that_collide_are_refused(leaf, message):
    with pytest.raises(ValueError, match=message):
        batch_leaves([OBSERVATION, leaf], [ACTION])


@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (1, 7), (3, 5), (32, 64)])
@pytest.mark.parametrize("leaves", [LEAVES, [Leaf(("a",), (3,), torch.uint8), Leaf(("b",), (), torch.float64)]])
def test_leaves_are_aligned_and_apart(leaves, rows, steps):
    layout = Layout(leaves, rows, steps)
    memory, slot = filled(layout)
    end = 0
    for leaf in leaves:
        tensor = slot.tensors[leaf.key]
        start = tensor.data_ptr() - memory.data_ptr()
        assert tensor.shape == (rows, steps, *leaf.shape)
        assert tensor.is_contiguous()
        assert start % ALIGNMENT_BYTES == 0
        assert start >= end
        end = start + tensor.nbytes
    assert end <= layout.nbytes < end + ALIGNMENT_BYTES
    assert layout.nbytes % ALIGNMENT_BYTES == 0
    assert layout.num_frames == rows * steps


@pytest.mark.parametrize("memory", [torch.zeros(5, dtype=torch.uint8), torch.zeros(64, dtype=torch.int8)])
def test_memory_of_the_wrong_size_or_type_is_refused(memory):
    with pytest.raises(ValueError, match="a slot needs 64 uint8, got"):
        Layout([ACTION], 1, 1).slot(memory)


def test_narrow_is_one_workers_rows_of_the_same_memory():
    _, slot = filled(Layout(LEAVES, 6, 4))
    part = slot.narrow(2, 2)
    for key, tensor in slot.tensors.items():
        assert torch.equal(part.tensors[key], tensor[2:4])
        assert part.tensors[key].is_contiguous()
    part.tensors["action",].fill_(-1)
    assert (slot.tensors["action",] == -1).all(-1).tolist() == [False, False, True, True, False, False]


def test_arrays_share_the_slots_memory():
    _, slot = filled(Layout(LEAVES, 2, 4))
    slot.arrays()["next", "reward"][1, 2] = 8.5
    assert slot.tensors["next", "reward"][1, 2].item() == 8.5


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.parametrize(
    ("rows", "steps", "batch_size", "names"),
    [
        (1, 10, [10], ["time"]),
        (3, 4, [3, 4], [None, "time"]),
        (2, 10, [2, 10], [None, "time"]),
        (6, 4, [2, 3, 4], [None, None, "time"]),
    ],
)
def test_a_tensordict_is_a_view_with_the_batch_size_and_names(rows, steps, batch_size, names, device):
    layout = Layout(LEAVES, rows, steps)
    memory, slot = filled(layout)
    batch = to_tensordict(layout.tensors(memory, tuple(batch_size)), batch_size, device)
    assert list(batch.batch_size) == batch_size
    assert batch.names == batch["next"].names == batch["collector"].names == names
    assert batch.device == device
    for leaf in LEAVES:
        tensor = batch.get(leaf.key)
        assert tensor.shape == (*batch_size, *leaf.shape)
        assert tensor.dtype is leaf.dtype
        # Each worker's rows in order.
        assert torch.equal(tensor.reshape(slot.tensors[leaf.key].shape), slot.tensors[leaf.key])
        assert tensor.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    assert {key if isinstance(key, tuple) else (key,) for key in batch.keys(True, True)} == {x.key for x in LEAVES}


def test_views_of_a_region_within_larger_memory_lie_at_its_place():
    layout = Layout(LEAVES, 2, 3)
    larger = torch.zeros(3 * layout.nbytes, dtype=torch.uint8)
    region = larger[layout.nbytes : 2 * layout.nbytes]
    layout.slot(region).tensors["action",].fill_(-1)
    assert layout.tensors(region, (6,))["action",].eq(-1).all()
    assert not larger[: layout.nbytes].any()
    assert not larger[2 * layout.nbytes :].any()
