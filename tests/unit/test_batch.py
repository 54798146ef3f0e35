"""Layouts put every leaf on its own aligned place; a slot's views and TensorDicts share its memory, shaped right."""

import pytest
import torch

from collectx.batch import ALIGNMENT_BYTES, Layout, Leaf, PerSlot, batch_leaves, same_size_integer, to_tensordict

OBSERVATION = Leaf(("observation",), (3,), torch.float32)
ACTION = Leaf(("action",), (), torch.int64)
LEAVES = batch_leaves([OBSERVATION], [ACTION])


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (OBSERVATION, r"the batch contains the key \('observation',\) twice"),
        (Leaf(("observation", "camera"), (), torch.uint8), "is a tensor, but also the parent of"),
    ],
)
def test_keys_that_collide_are_refused(leaf, message):
    with pytest.raises(ValueError, match=message):
        batch_leaves([OBSERVATION, leaf], [ACTION])


@pytest.mark.parametrize("leaves", [LEAVES, [Leaf(("a",), (3,), torch.uint8), Leaf(("b",), (), torch.float64)]])
@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.parametrize("batch_size", [(1,), (7,), (3, 5), (2, 3, 4)])
def test_a_tensordict_is_a_view_of_leaves_that_lie_aligned_and_apart(leaves, device, batch_size):
    *lead, steps = batch_size
    layout = Layout(leaves, torch.Size(lead).numel(), steps)
    # A region within larger memory.
    larger = torch.zeros(3 * layout.nbytes, dtype=torch.uint8)
    region = larger[layout.nbytes : 2 * layout.nbytes]
    slot = layout.slot(region)
    batch = to_tensordict(layout.tensors(region, batch_size), batch_size, device)
    assert batch.device == device
    assert batch.names == [*[None] * len(lead), "time"]
    assert {key if isinstance(key, tuple) else (key,) for key in batch.keys(True, True)} == {x.key for x in leaves}
    end = 0
    for number, leaf in enumerate(leaves):
        tensor, start = slot.tensors[leaf.key], slot.tensors[leaf.key].data_ptr() - region.data_ptr()
        assert tensor.shape == (layout.rows, steps, *leaf.shape)
        assert tensor.dtype is leaf.dtype
        assert tensor.is_contiguous()
        assert start % ALIGNMENT_BYTES == 0
        assert start >= end
        end = start + tensor.nbytes
        tensor.view(torch.uint8).fill_(number + 1)
    assert end <= layout.nbytes < end + ALIGNMENT_BYTES
    for number, leaf in enumerate(leaves):
        assert batch.get(leaf.key).shape == (*batch_size, *leaf.shape)
        assert batch.get(leaf.key).contiguous().view(torch.uint8).eq(number + 1).all()
    assert not torch.cat([larger[: layout.nbytes], larger[2 * layout.nbytes :]]).any()


@pytest.mark.parametrize(
    ("dtype", "integer"),
    [
        (torch.float8_e5m2, torch.uint8),
        (torch.bfloat16, torch.int16),
        (torch.float32, None),
        (torch.bool, None),
    ],
)
def test_a_dtype_that_numpy_lacks_is_an_integer_of_its_size(dtype, integer):
    assert same_size_integer(dtype) is integer


def test_what_belongs_to_a_slot_is_made_once_and_kept_for_the_last_slots():
    made = []
    views = PerSlot(lambda slot: made.append(slot) or -slot)
    assert [views[slot] for slot in (3, 5, 3)] == [-3, -5, -3]
    assert made == [3, 5]
    for slot in range(100, 100 + PerSlot.LIMIT - 1):
        assert views[slot] == -slot
    assert len(views) == PerSlot.LIMIT
    assert (views[5], views[3]) == (-5, -3)
    assert made[-1] == 3
