import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves
from collectx.errors import DataError, SpaceError

PAIR = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})


def test_what_is_left_out_of_a_tuple_leaves_the_others_their_names():
    space = spaces.Tuple([spaces.Text(5), spaces.Dict(a=PAIR, b=spaces.Text(5)), PAIR])
    leaves = ObservationLeaves(space, ["0", "1.b", "2.a"]).leaves
    assert [leaf.key[1:] for leaf in leaves] == [("1", "a", "a"), ("1", "a", "b"), ("2", "b")]


@pytest.mark.difference("an observation of `gymnasium.spaces.Text`")
def test_texts_are_their_code_points():
    leaves = ObservationLeaves(spaces.Dict(said=spaces.Text(4), n=spaces.Discrete(2)))
    assert leaves.leaves[0] == Leaf(("said",), (4,), torch.int32)
    one, _ = leaves.flatten({"said": "né", "n": 1})
    assert one.tolist() == [ord("n"), ord("é"), 0, 0]
    both, _ = leaves.flatten({"said": ("", "four"), "n": [0, 1]})
    assert both.tolist() == [[0] * 4, [ord(letter) for letter in "four"]]
    assert both.view("U4").squeeze(-1).tolist() == ["", "four"]
    for wrong in ("fiver", 3, None):
        with pytest.raises(
            DataError, match=r"returned .* as 'said', but its space only holds text of at most 4 characters"
        ):
            leaves.flatten({"said": wrong, "n": 1})
    with pytest.raises(SpaceError, match="its space Text"):
        SpaceLeaves(spaces.Text(4), ("action",))


def test_a_missing_part():
    with pytest.raises(
        DataError, match=r"the observation lacks 'b', a part of its space: .'a': 1.\. Include all parts"
    ):
        ObservationLeaves(PAIR).flatten({"a": 1})
    with pytest.raises(DataError, match=r"the observation must be a dict with a, b, but is \[1, 2\]\."):
        ObservationLeaves(PAIR).flatten([1, 2])


@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_action_is_an_array_of_the_space_that_an_env_may_keep_and_change(shape):
    space = spaces.Box(-1, 1, shape, np.float32)
    actions = np.full((2, *shape), 0.5, np.float32)
    first, second = SpaceLeaves(space, ("action",)).element_splitter()([actions])
    assert space.contains(first)
    first[...] = 0.0
    assert (second == 0.5).all()
    assert (actions == 0.5).all()
