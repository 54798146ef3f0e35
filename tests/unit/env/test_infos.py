"""Entries of `info`: their forms as read, declared and shown, and their values."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from configurations import gym
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from omegaconf import OmegaConf

from collectx.env.infos import InfoKeys, declare, shown, undeclared
from collectx.errors import SpaceError


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("float32", "float32"),
        ([3, "int64"], "[3, int64]"),
        ({"at": {"x": "float32", "y": [2]}}, "{at: {x: float32, y: [2]}}"),
    ],
)
def test_a_form_is_shown_as_what_a_user_types(form, text):
    assert shown(form) == text
    assert OmegaConf.to_container(OmegaConf.create(f"form: {text}"))["form"] == form


class Told(gymnasium.Env):
    """An env whose resets and steps return the infos that it is given; the last one ends an episode."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, at_reset, *infos):
        self.at_reset, self.infos = at_reset, infos

    def reset(self, *, seed=None, options=None):
        self.left = iter(self.infos)
        self.t = 0
        return 0, self.at_reset

    def step(self, action):
        self.t += 1
        return 0, 0.0, self.t == len(self.infos), False, next(self.left)


def vector(mode, *envs):
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode(mode))


READ = {
    "a number": (["a"], Told({}, {"a": 1})),
    "numbers": (["a", "b", "c"], Told({}, {"a": 1.5, "b": True, "c": np.int8(1)})),
    "an array": (["a"], Told({}, {"a": np.zeros((2, 3), np.float32)})),
    "a list": (["a"], Told({}, {"a": [1.0, 2.0]})),
    "a dict": (["a"], Told({}, {"a": {"x": 1, "deep": {"y": [1.0]}}})),
    "an empty dict": (["a"], Told({}, {"a": {}})),
    "a later one": (["a"], Told({}, {}, {"a": 1}, {"a": [1]})),
    "one of the reset": (["a"], Told({"a": 1}, {}, {})),
    "one of the reset and of a step": (["a"], Told({"a": 1}, {"a": [2]}, {})),
    "one twice": (["a", "a"], Told({}, {"a": 1})),
    "none": (["a"], Told({"b": 1}, {"c": 1})),
    "nothing": (["a"], Told({}, {})),
    "after the end": (["a", "b"], Told({}, {"a": 1})),
    "a text": (["a"], Told({}, {"a": "x"})),
    "a text in a dict": (["a"], Told({}, {"a": {"deep": {"x": "y"}}})),
    "an uneven list": (["a"], Told({}, {"a": [[1], [1, 2]]})),
    "None": (["a"], Told({}, {"a": None})),
    "a complex number": (["a"], Told({}, {"a": 1j})),
    "declared": ([{"a": "float32", "b": ["int64", 2]}], Told({}, {})),
    "declared and not": ([{"a": "float32"}, "b"], Told({}, {"b": 1})),
    "declared as a dict": ([{"a": {"x": "bool", "y": ["uint8", 2, 2]}}], Told({}, {})),
    "declared with a text for a size": ([{"a": ["float32", "2"]}], Told({}, {})),
    "declared wrongly": ([{"a": {"x": ["float32", "n"]}}], Told({}, {})),
    "declared with a negative size": ([{"a": ["float32", -1]}], Told({}, {})),
    "one with the name of a mask": (["a", "_a"], Told({}, {"a": 1, "_a": 2})),
    "of a vector": (["a", "b"], vector("Disabled", Told({}, {"a": 1}), Told({}, {"b": [1.0]}))),
    "of a vector, final": (["a"], vector("SameStep", Told({"b": 1}, {"a": 1}), Told({"b": 1}, {}, {}))),
    "of a vector, a dict": (["a"], vector("NextStep", Told({}, {}, {}), Told({}, {"a": {"x": 1}}, {}))),
    "of a vector, none": (["a"], vector("NextStep", Told({"c": 1}, {}, {}), Told({}, {"b": 1}, {}))),
}


def test_what_is_read_of_infos(expected):
    def described(keys, env):
        try:
            infos = InfoKeys(keys, env)
        except SpaceError as error:
            return str(error)
        return {"declared": infos.declared, "leaves": [leaf.to_json() for leaf in infos.leaves]}

    expected("infos", {name: described(*case) for name, case in READ.items()})


INFO = [{"a": "int64", "d": {"x": "float32", "y": ["int64", 2]}}]


@pytest.mark.parametrize(
    ("info", "values"),
    [
        ({}, [0, False, 0, [0, 0], False]),
        ({"a": 3}, [3, True, 0, [0, 0], False]),
        ({"d": {"x": 1.5, "y": [4, 5]}, "more": 1}, [0, False, 1.5, [4, 5], True]),
    ],
)
def test_the_values_of_one_env(info, values):
    found = InfoKeys(INFO, Told({})).values(info)
    assert [np.asarray(value).tolist() for value in found] == values


def test_the_values_of_a_vector_env():
    infos = InfoKeys(INFO, Told({}))
    yes, no, some = np.array([True, True]), np.array([False, False]), np.array([False, True])
    info = {"a": np.array([7, 8]), "_a": some, "d": {"x": np.array([1.5, 2]), "y": np.array([[1, 2], [3, 4]])}}

    def told(info):
        return [value.tolist() for value in infos.batched_values(info, 2)]

    nothing = [[0, 0], [0, 0]]
    assert told({}) == [[0, 0], no.tolist(), [0, 0], nothing, no.tolist()]
    assert told(info) == [[0, 8], some.tolist(), [1.5, 2], [[1, 2], [3, 4]], yes.tolist()]
    assert info["a"].tolist() == [7, 8], "the env's own array was changed"
    assert told({**info, "_d": some})[2:] == [[0, 2], [[0, 0], [3, 4]], some.tolist()]
    # Env 1 has ended. The final info has its `a`; its `d` is not there, so that of the info is the final one.
    final = {"a": np.array([0, 9]), "_a": some}
    first, last = infos.first_and_final_values({**info, "_a": yes, "final_info": final}, some)
    assert [value.tolist() for value in first] == [[7, 8], [True, True], [1.5, 0], [[1, 2], [0, 0]], [True, False]]
    assert [value.tolist() for value in last] == [[0, 9], [False, True], [0, 2], [[0, 0], [3, 4]], [False, True]]


def test_declared_infos_take_the_place_of_their_names():
    cfg = replace(gym(), info_keys=["a", {"b": "float32"}])
    assert undeclared(cfg.info_keys) == ["a"]
    assert declare(cfg, {}) is cfg
    assert declare(cfg, {"a": "int64", "b": "float32"}).info_keys == [{"a": "int64", "b": "float32"}]
