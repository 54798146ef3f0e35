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


def test_a_batch_has_the_keys_shapes_and_dtypes_of_torchrl():
    assert {leaf.key: (leaf.shape, leaf.dtype) for leaf in LEAVES} == {
        ("observation",): ((3,), torch.float32),
        ("action",): ((), torch.int64),
        ("done",): ((1,), torch.bool),
        ("terminated",): ((1,), torch.bool),
        ("truncated",): ((1,), torch.bool),
        ("next", "observation"): ((3,), torch.float32),
        ("next", "reward"): ((1,), torch.float32),
        ("next", "done"): ((1,), torch.bool),
        ("next", "terminated"): ((1,), torch.bool),
        ("next", "truncated"): ((1,), torch.bool),
        ("collector", "traj_ids"): ((), torch.int64),
        ("collector", "policy_version"): ((), torch.int64),
    }


def test_two_leaves_with_one_key_are_refused():
    with pytest.raises(ValueError, match=r"two leaves of the batch have the key \('observation',\)"):
        batch_leaves([OBSERVATION], [OBSERVATION])


def test_a_leaf_below_a_leaf_is_refused():
    with pytest.raises(ValueError, match="is a tensor and also holds"):
        batch_leaves([OBSERVATION, Leaf(("observation", "camera"), (), torch.uint8)], [ACTION])


@pytest.mark.parametrize(("rows", "steps"), [(1, 1), (1, 7), (3, 5), (32, 64)])
def test_leaves_are_aligned_and_apart(rows, steps):
    layout = Layout(LEAVES, rows, steps)
    memory, slot = filled(layout)
    base = memory.data_ptr()
    end = 0
    for leaf in LEAVES:
        tensor = slot.tensors[leaf.key]
        start = tensor.data_ptr() - base
        assert tensor.shape == (rows, steps, *leaf.shape)
        assert tensor.is_contiguous()
        assert start % ALIGNMENT_BYTES == 0
        assert start >= end
        end = start + tensor.nbytes
    assert end <= layout.nbytes
    assert layout.nbytes % ALIGNMENT_BYTES == 0
    assert layout.num_frames == rows * steps


def test_an_odd_sized_leaf_does_not_shift_the_alignment_of_the_next():
    layout = Layout([Leaf(("a",), (3,), torch.uint8), Leaf(("b",), (), torch.float64)], 1, 1)
    memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
    slot = layout.slot(memory)
    slot.tensors["b",].fill_(2.5)
    assert memory[:3].tolist() == [0, 0, 0]
    assert layout.nbytes == 2 * ALIGNMENT_BYTES


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
    assert slot.tensors["action",][2:4].eq(-1).all()
    assert not slot.tensors["action",][:2].eq(-1).any()


def test_arrays_share_the_slots_memory():
    _, slot = filled(Layout(LEAVES, 2, 4))
    slot.arrays()["next", "reward"][1, 2] = 8.5
    assert slot.tensors["next", "reward"][1, 2].item() == 8.5


@pytest.mark.parametrize(
    ("rows", "steps", "batch_size", "names"),
    [
        (1, 10, [10], ["time"]),
        (3, 4, [3, 4], [None, "time"]),
        (2, 10, [2, 10], [None, "time"]),
        (6, 4, [2, 3, 4], [None, None, "time"]),
    ],
)
def test_a_tensordict_has_the_batch_size_and_names(rows, steps, batch_size, names):
    layout = Layout(LEAVES, rows, steps)
    memory, slot = filled(layout)
    batch = to_tensordict(layout.tensors(memory, tuple(batch_size)), batch_size)
    assert list(batch.batch_size) == batch_size
    assert batch.names == names
    assert batch["next"].names == names
    assert batch["collector"].names == names
    assert batch.device is None
    for leaf in LEAVES:
        tensor = batch.get(leaf.key)
        assert tensor.shape == (*batch_size, *leaf.shape)
        assert tensor.dtype is leaf.dtype
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


def test_a_joined_batch_puts_each_worker_in_its_row():
    rows_per_worker, steps = 3, 4
    layout = Layout(LEAVES, 2 * rows_per_worker, steps)
    memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
    slot = layout.slot(memory)
    for worker in range(2):
        slot.narrow(worker * rows_per_worker, rows_per_worker).tensors["action",].fill_(worker + 5)
    size = (2, rows_per_worker, steps)
    batch = to_tensordict(layout.tensors(memory, size), size)
    assert batch["action"][0].eq(5).all()
    assert batch["action"][1].eq(6).all()


def test_storing_on_the_cpu_names_the_device_and_copies_nothing():
    layout = Layout(LEAVES, 1, 4)
    memory, _ = filled(layout)
    batch = to_tensordict(layout.tensors(memory, (4,)), [4], torch.device("cpu"))
    assert batch.device == torch.device("cpu")
    assert batch["action"].untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
