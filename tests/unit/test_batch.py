"""Layouts put every leaf on its own aligned place; a slot's views and TensorDicts share its memory, shaped right."""

import pytest
import torch

from collectx.batch import (
    ALIGNMENT_BYTES,
    Layout,
    Leaf,
    PerSlot,
    as_key,
    batch_leaves,
    clashes,
    nest,
    nested_dims,
    same_size_integer,
    to_tensordict,
)

OBSERVATION = Leaf(("observation",), (3,), torch.float32)
ACTION = Leaf(("action",), (), torch.int64)
LEAVES = batch_leaves([OBSERVATION], [ACTION])


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (OBSERVATION, r"the batch contains the key 'observation' twice"),
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


def test_keys_and_what_lies_below_them():
    assert [as_key("a"), as_key(["a", "b"])] == [("a",), ("a", "b")]
    assert nest({("a",): 1, ("b", "c", "d"): 2, ("b", "e"): 3}) == {"a": 1, "b": {"c": {"d": 2}, "e": 3}}
    names = [("a.b", ("a", "b")), ("a.b", ("a.b",)), ("c", ("c",)), ("c", ("c",))]
    assert clashes(names) == {"a.b": [("a", "b"), ("a.b",)]}


def test_an_observation_that_the_policy_overwrites_shares_its_leaf():
    following = OBSERVATION.under("next")
    keys = [leaf.key for leaf in batch_leaves([OBSERVATION, ACTION], [ACTION, following], omitted=[ACTION.key])]
    assert keys[:4] == [("observation",), ("action",), ("next", "observation"), ("done",)]
    assert [keys.count(key) for key in (("next", "observation"), ("next", "action"), ("next", "reward"))] == [1, 0, 1]


def test_the_rows_of_a_slot_are_one_run_of_bytes_for_each_leaf():
    layout = Layout([Leaf(("a",), (3,), torch.int16), Leaf(("b",), (), torch.uint8)], 5, 4)
    assert layout.runs(1, 2) == [slice(24, 72), slice(128 + 4, 128 + 12)]
    memory = torch.arange(layout.nbytes, dtype=torch.uint8)
    slot, part = layout.slot(memory), layout.slot(memory).narrow(1, 2).until(3)
    for (key, tensor), run in zip(part.tensors.items(), layout.runs(1, 2), strict=True):
        assert torch.equal(slot.tensors[key][1:3].reshape(-1).view(torch.uint8), memory[run])
        assert torch.equal(tensor, slot.tensors[key][1:3, :3])
    for wrong in (memory[:-1], memory.view(torch.int8)):
        with pytest.raises(ValueError, match=f"a slot needs {layout.nbytes} uint8"):
            layout.slot(wrong)


def test_nested_tensordicts_have_the_dimensions_that_all_their_leaves_share():
    agents = [Leaf(("agents", name), shape, torch.float32) for name, shape in (("a", (2, 3)), ("b", (2,)))]
    leaves = (OBSERVATION, *agents, agents[0].under("next"), Leaf(("others", "c"), (4,), torch.float32))
    dims = nested_dims({("agents",): (2,), ("others",): (5,), ("nobody",): (2,)}, leaves)
    assert dims == {("agents",): (2,), ("next", "agents"): (2,)}
    tensors = {leaf.key: torch.zeros(7, *leaf.shape) for leaf in leaves}
    batch = to_tensordict(tensors, (7,), None, dims)
    assert [batch[key].batch_size for key in ("agents", "others", "next", ("next", "agents"))] == [
        (7, 2),
        (7,),
        (7,),
        (7, 2),
    ]
    assert batch["agents"].names == ["time", None]
