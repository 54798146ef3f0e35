"""Spaces as leaves of a batch, values as what is stored, and the refusals of both, as whole tables."""

import numpy as np
import pytest
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves, checked_values, torch_dtype, write_env
from collectx.errors import DataError, SpaceError


def box(*shape, dtype=np.float32):
    return spaces.Box(0, 9 if np.issubdtype(dtype, np.number) else 1, shape, dtype)


def numbered(space, first=0):
    """Returns a value of a space whose numbers count from `first`, and the next number."""
    if isinstance(space, spaces.Dict):
        parts = {}
        for name, part in space.spaces.items():
            parts[name], first = numbered(part, first)
        return parts, first
    if isinstance(space, spaces.Tuple):
        values = []
        for part in space.spaces:
            value, first = numbered(part, first)
            values.append(value)
        return tuple(values), first
    if isinstance(space, spaces.Text):
        return "ab"[: space.max_length], first
    size = int(np.prod(space.shape))
    return (np.arange(size).reshape(space.shape) + first).astype(space.dtype), first + size


def batched(values):
    """Joins the values of two envs as a vector env returns them."""
    first = values[0]
    if isinstance(first, dict):
        return {name: batched([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(batched(parts) for parts in zip(*values, strict=True))
    return tuple(values) if isinstance(first, str) else np.stack(values)


ARM = spaces.Dict(a=spaces.Discrete(3), b=box(2))
SPACES = {
    "a Box": (box(2, 2),),
    "a Box of no dimension": (box(),),
    "a Box of float16": (box(1, dtype=np.float16),),
    "a Box of booleans": (box(2, dtype=np.bool_),),
    "a Box of uint16": (box(2, dtype=np.uint16),),
    "a Discrete": (spaces.Discrete(4, start=2),),
    "a MultiDiscrete": (spaces.MultiDiscrete([2, 3]),),
    "a MultiBinary": (spaces.MultiBinary(3),),
    "a Text": (spaces.Text(3),),
    "a Dict": (spaces.Dict(x=box(2), n=spaces.Discrete(2), deep=spaces.Dict(y=box())),),
    "a Dict with a state": (spaces.Dict(state=box(2), x=box()),),
    "a Dict with a state of parts": (spaces.Dict(state=ARM, x=box()),),
    "a Dict with a state and an observation": (spaces.Dict(state=box(2), observation=box()),),
    "a Dict with info": (spaces.Dict(info=box(2)),),
    "a Dict with info, and kept infos": (spaces.Dict(info=box(2)), (), ["speed"]),
    "a Dict with taken names": (spaces.Dict(reward=box(), done=box(), x=box()),),
    "an empty Dict": (spaces.Dict(),),
    "a Tuple of equal parts": (spaces.Tuple([box(2), box(2), box(2)]),),
    "a Tuple of one part": (spaces.Tuple([box(2)]),),
    "a Tuple of Tuples": (spaces.Tuple([spaces.Tuple([box(2), box(2), box(2)])] * 2),),
    "a Tuple of Discretes": (spaces.Tuple([spaces.Discrete(3, start=1)] * 2),),
    "a Tuple of MultiDiscretes": (spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, 0])] * 2),),
    "a Tuple of MultiBinaries": (spaces.Tuple([spaces.MultiBinary((2, 1))] * 3),),
    "a Tuple of Dicts": (spaces.Tuple([ARM, ARM]),),
    "a Tuple of unequal parts": (spaces.Tuple([box(2), box(3)]),),
    "a Tuple of texts": (spaces.Tuple([spaces.Text(2)] * 2),),
    "an empty Tuple": (spaces.Tuple([]),),
    "a Dict of Tuples and a text": (
        spaces.Dict(both=spaces.Tuple([box(), box()]), said=spaces.Text(2), each=spaces.Tuple([box(), ARM])),
    ),
    "names that are equal as text": (spaces.Dict({"0": box(), "x": spaces.Dict({"1": box()})}),),
    "without a part": (spaces.Dict(x=box(2), y=ARM), ["x"]),
    "without a part of a part": (spaces.Dict(x=box(2), y=ARM), ["y.a"]),
    "without all parts": (spaces.Dict(x=box(2)), ["x"]),
    "without a part of a Tuple": (spaces.Tuple([box(2), ARM, box(3)]), ["1"]),
    "without the state": (spaces.Dict(state=box(2), x=box()), ["state"]),
    "without the observation": (box(2), ["observation"]),
    "without a mask in the infos": (box(2), ["action_mask"]),
    "without what is not there": (spaces.Dict(x=box(2)), ["z", "x.y"]),
    "without what is not there, of a Box": (box(2), ["z"]),
    "without what has the same name twice": (spaces.Dict({"y.a": box(), "y": ARM}), ["y.a"]),
    "a Graph": (spaces.Graph(box(2), None),),
    "a Graph in a Dict": (spaces.Dict(inner=spaces.Dict(g=spaces.Graph(box(2), None))),),
    "a Sequence in a Tuple": (spaces.Tuple([spaces.Sequence(box(2))]),),
}


def described(space, exclude=(), info_keys=()):
    """Leaves, space, and the leaf values of one env and of two."""
    try:
        leaves = ObservationLeaves(space, exclude, info_keys)
        (one, more), is_left_out = numbered(space), bool(exclude)
        values = [leaves.flatten(one), leaves.flatten(batched([one, numbered(space, more)[0]]))]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    stored = {}
    for leaf, single, several in zip(leaves.leaves, *values, strict=True):
        assert np.shape(several) == (2, *leaf.shape)
        form = f"{[*leaf.shape]} {leaf.dtype}".replace("torch.", "")
        stored[".".join(leaf.key)] = [form, np.asarray(single).tolist(), np.asarray(several).tolist()]
    return {"space": str(leaves.space), **stored} if is_left_out or "state" in str(space) else stored


def test_observations(expected):
    expected("observations", {name: described(*case) for name, case in SPACES.items()})


VALUES = {
    "float32": [np.float32(0.5), 0.5, 1, True, np.float64(1e300), 2**70, 1j, "x", None, [0.5]],
    "int64": [3, np.int8(-3), np.uint64(2**63), True, 2.0, 2**70],
    "uint8": [255, 256, -1, np.int64(0), np.float32(1), True],
    "bool": [True, np.bool_(False), 1, 0.0],
}


def test_values(expected):
    """Each value is given as the value of env 1 of 2, and as the values of both envs."""

    def stored(dtype, value):
        leaf = Leaf(("a", "b"), (), torch_dtype(np.dtype(dtype)))
        results = []
        for e, store in (
            (1, lambda array: write_env([leaf], [array], 1, [value])),
            (0, lambda array: array.__setitem__(..., checked_values(leaf, [value, value], array))),
        ):
            array = np.zeros(2, dtype)
            try:
                with np.errstate(over="ignore"):
                    store(array)
                results.append(array[1].item())
            except DataError as error:
                results.append(str(error).removeprefix(f"env {e} returned "))
        assert results[0] == results[1]
        return results[0]

    table = {
        f"{dtype}: {type(value).__name__} {value}": stored(dtype, value) for dtype, of in VALUES.items() for value in of
    }
    expected("values", table)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        (np.array([[1, 2], [3, 4]], np.uint8), [[1, 2], [3, 4]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ([np.array([1, 2], np.uint8), [3, 4]], [[1, 2], [3, 4]]),
        (
            [[1, 2], [3]],
            "env 1 returned a value of shape (1,) and dtype int64 as 'x', but its space has shape (2,) and ",
        ),
        (
            [[1, 2], [3, [4]]],
            "env 1 returned a ragged list as 'x', but its space has shape (2,) and ",
        ),
        (
            [[1, 2], [3, 256]],
            "env 1 returned values from 3 to 256 as 'x', but its space has dtype uint8, which only holds 0 to 255",
        ),
        (
            [[1, 2]],
            "the vector env returned 1 value as 'x', but its space has 2 values of shape (2,), one per env",
        ),
        (
            3,
            "the vector env returned a value of type int as 'x', but its space has 2 values of shape (2,), one per env",
        ),
        (
            [],
            "the vector env returned a value of type list as 'x', but its space has 2 values of shape (2,), one",
        ),
    ],
)
def test_the_values_of_a_vector_env(values, result):
    leaf, array = Leaf(("x",), (2,), torch_dtype(np.dtype(np.uint8))), np.zeros((2, 2), np.uint8)
    if isinstance(result, str):
        with pytest.raises(DataError) as raised:
            checked_values(leaf, values, array)
        assert str(raised.value).startswith(result)
    else:
        array[:] = checked_values(leaf, values, array)
        assert array.tolist() == result


ACTIONS = {
    "a Discrete": spaces.Discrete(4, start=2),
    "a MultiBinary": spaces.MultiBinary(2),
    "a Box": box(2),
    "a Dict": spaces.Dict(arm=spaces.Tuple([box(2, dtype=np.float64), spaces.Discrete(3)]), push=box()),
    "a Tuple": spaces.Tuple([box(1), box(1)]),
    "nothing": spaces.Dict(),
}


def test_actions(expected):
    """The leaves, and two envs' actions, with their types."""

    def described(space):
        try:
            leaves = SpaceLeaves(space, ("action",))
        except SpaceError as error:
            return str(error)
        one, more = numbered(space)
        arrays = [
            np.stack(pair) for pair in zip(leaves.flatten(one), leaves.flatten(numbered(space, more)[0]), strict=True)
        ]
        kept = [array.copy() for array in arrays]
        actions = leaves.element_splitter()(arrays)
        both = leaves.nest(arrays)
        for action in actions:
            for value in leaves.flatten(action):
                if isinstance(value, np.ndarray):
                    value[...] = 1
        assert all(map(np.array_equal, arrays, kept)), "the action is no copy"
        actions = leaves.element_splitter()(arrays)
        return {
            "leaves": [leaf.to_json() for leaf in leaves.leaves],
            "dtypes": leaves.dtypes,
            "single": leaves.single,
            "envs": [repr(action) for action in actions],
            "both": repr(both),
        }

    expected("actions", {name: described(space) for name, space in ACTIONS.items()})
