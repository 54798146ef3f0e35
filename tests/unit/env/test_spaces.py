from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from anyspaces import any_space
from gymnasium import spaces
from hypothesis import given, settings

from collectx.env.spaces import Structure, numpy_dtype, write_row
from collectx.errors import ShapeError, SpaceError

ROOT = ("observation",)

DTYPES = [np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64]
SPACES = any_space(DTYPES, 3, 6)


def same(space: gymnasium.Space, one, other) -> bool:
    if isinstance(space, spaces.Dict):
        return all(same(part, one[name], other[name]) for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(same(part, a, b) for part, a, b in zip(space.spaces, one, other, strict=True))
    return np.array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(SPACES)
def test_values_survive_the_way_through_rows(space):
    structure = Structure(space, ROOT)
    rows = [np.zeros((3, 2, *leaf.shape), numpy_dtype(leaf))[:, 1] for leaf in structure.leaves]
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    for e, sample in enumerate(samples):
        write_row(structure.leaves, rows, e, structure.flatten(sample))
    values = structure.element_splitter()(rows)
    for sample, value in zip(samples, values, strict=True):
        assert same(space, sample, value)
        assert space.contains(value)
    for row in rows:
        row[...] = 0
    assert all(same(space, sample, value) for sample, value in zip(samples, values, strict=True))


def test_keys_shapes_and_dtypes():
    space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 3), np.uint8),
            "pose": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3, start=5)]),
        }
    )
    found = [(leaf.key, leaf.shape, leaf.dtype) for leaf in Structure(space, ROOT).leaves]
    assert found == [
        (("observation", "camera"), (4, 3), torch.uint8),
        (("observation", "pose", "0"), (2,), torch.float64),
        (("observation", "pose", "1"), (), torch.int64),
    ]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_a_fixed_shape(space):
    with pytest.raises(SpaceError, match=rf"observation\.inner: the space {type(space).__name__}.*turn it into a Box"):
        Structure(spaces.Dict({"inner": space}), ROOT)


def test_empty_and_clashing_dicts():
    with pytest.raises(SpaceError, match="is empty"):
        Structure(spaces.Dict({}), ROOT)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3, np.float32), r"observation: expected shape \(4,\), dtype uint8, got shape \(3,\)"),
        (np.zeros(1, np.uint8), r"got shape \(1,\), dtype uint8 from env 0"),
        (np.zeros(4, np.float32), "dtype uint8, got shape .4,., dtype float32"),
        ([[1], [2, 3]], "list of uneven shape"),
    ],
)
def test_values_that_do_not_fit(value, message):
    structure = Structure(spaces.Box(0, 255, (4,), np.uint8), ROOT)
    with pytest.raises(ShapeError, match=message):
        write_row(structure.leaves, [np.zeros((1, 4), np.uint8)], 0, structure.flatten(value))


def test_a_missing_part():
    structure = Structure(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}), ROOT)
    with pytest.raises(ShapeError, match=r"observation\.b: missing"):
        structure.flatten({"a": 1})
