"""Which states a recurrent policy passes on, with their first values."""

import pytest
import torch
from gymnasium import spaces
from torch import nn

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy.recurrent import find_states, spec_with_states

SEEN = Leaf(("observation",), (3,), torch.float32)
HIDDEN = Leaf(("h",), (2, 4), torch.float32)
IS_INIT = Leaf(("is_init",), (1,), torch.bool)


def spec(*leaves):
    return EnvSpec(2, (SEEN, *leaves), (Leaf(("action",), (), torch.int64),), spaces.Dict(), spaces.Discrete(2))


class Policy(nn.Module):
    """Reads and writes keys, with recurrent layers."""

    def __init__(self, reads, writes, *layers, initial=None, inner=None):
        super().__init__()
        self.in_keys, self.out_keys, self.layers = reads, writes, nn.ModuleList(layers)
        if initial is not None:
            self.initial_state = initial
        if inner is not None:
            self.inner = Policy([], [], initial=inner)


H = (["observation", "h"], ["action", ("next", "h")])
HC = (["h", ("deep", "c")], ["action", ("next", "h"), ("next", "deep", "c")])
CASES = {
    "none": (Policy(["observation"], ["action"]), spec(), ()),
    "a function": (lambda observation: 0, spec(), ()),
    "observed": (Policy(*H), spec(HIDDEN), ()),
    "observed, but only read": (Policy(["observation", "h"], ["action"]), spec(HIDDEN), ()),
    "written, but not read": (Policy(["observation"], ["action", ("next", "h")]), spec(), ()),
    "an attribute": (Policy(*H, initial={"h": torch.ones(2)}), spec(), ()),
    "an attribute of a part, and numbers": (Policy(*H, inner={"h": [1, 2]}), spec(), ()),
    "an attribute of no dict": (Policy(*H, nn.GRUCell(3, 4), initial=3), spec(), [(4,)]),
    "a cell": (Policy(*H, nn.GRUCell(3, 4)), spec(), [(4,)]),
    "a GRU, batched": (Policy(*H, nn.GRU(3, 4)), spec(), [(1, 4)]),
    "a GRU, unbatched": (Policy(*H, nn.GRU(3, 4)), spec(), [(4,)]),
    "two layers": (Policy(*H, nn.GRU(3, 4, 2)), spec(), [(2, 4)]),
    "two directions": (Policy(*H, nn.GRU(3, 4, bidirectional=True)), spec(), [(2, 4)]),
    "two layers, two directions": (Policy(*H, nn.GRU(3, 4, 2, bidirectional=True)), spec(), [(4, 4)]),
    "two states of different sizes": (Policy(*HC, nn.LSTM(3, 4), nn.GRUCell(3, 5)), spec(), [(1, 4), (5,)]),
    "two states, one given": (Policy(*HC, nn.GRUCell(3, 4), initial={"h": torch.zeros(7)}), spec(), [(7,), (4,)]),
    "no layer": (Policy(*H), spec(), [(4,)]),
    "no shape that fits": (Policy(*H, nn.GRUCell(3, 4)), spec(), [(9,)]),
    "the begin of an episode": (Policy(["is_init", "h"], H[1], nn.GRUCell(3, 4)), spec(), [(4,)]),
    "the begin of an episode, observed": (Policy(["is_init"], ["action"]), spec(IS_INIT), ()),
}


def described(policy, env_spec, accepted):
    """Returns the states of a policy that raises an error for other shapes than `accepted`, in their order."""
    tried = []

    def probe(seen):
        states = [leaf for leaf in seen.observation[len(env_spec.observation) :] if leaf != IS_INIT]
        tried.append([leaf.shape for leaf in states])
        if tried[-1] != list(accepted):
            raise ValueError(f"not {tried[-1]}")
        return [leaf.under("next") for leaf in states]

    try:
        states = find_states(policy, env_spec, probe)
    except ConfigError as error:
        return str(error)
    seen = spec_with_states(env_spec, states)
    added = seen.observation[len(env_spec.observation) :]
    assert [state.leaf for state in states if state.initial is not None] == list(added)
    for leaf in added:
        assert seen.example_observation[leaf.key].shape == (1, *leaf.shape)
    return {
        "states": [
            [
                *state.leaf.to_json(),
                None if state.initial is None else state.initial.flatten().tolist()[:2],
                state.is_written,
            ]
            for state in states
        ],
        "tried": tried,
    }


def test_states(expected):
    expected("states", {name: described(*case) for name, case in CASES.items()})


def test_a_shape_that_the_policy_accepts_but_does_not_return_is_no_state():
    with pytest.raises(ConfigError, match=r"state h is unknown: none of the shapes \(4,\) fits\. Set"):
        find_states(Policy(*H, nn.GRUCell(3, 4)), spec(), lambda seen: [])
