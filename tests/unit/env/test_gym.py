from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from collecting import gym
from gymnasium import spaces
from stepping import Stepper

from collectx.env import build, read_spec
from collectx.env.spaces import numpy_dtype
from collectx.errors import ShapeError, SpaceError

NESTED = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64)])})


class Toy(gymnasium.Env):
    """Keeps its actions; observes, or raises, `fault` in its step `at`."""

    def __init__(self, space=None, fault=None, at=1, infos=None):
        self.observation_space = self.action_space = space or spaces.Box(-1, 1, (2,))
        self.fault, self.at, self.infos = fault, at, infos or {}
        self.actions = []

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.actions.append(action)
        is_faulty = self.fault is not None and len(self.actions) == self.at
        if is_faulty and isinstance(self.fault, Exception):
            raise self.fault
        return self.fault if is_faulty else self.observation_space.sample(), 0.5, False, False, self.infos


def toys(info_keys=(), **kwargs):
    return replace(gym(3, entry_point=Toy, **kwargs), info_keys=list(info_keys))


def test_nested_actions_and_observations():
    stepper = Stepper(build(toys(space=NESTED))).reset()
    stepper.step(np.array([0, 1, 2]), np.zeros((3, 2)))
    assert [leaf.key for leaf in stepper.spec.action] == [("action", "a"), ("action", "b", "0")]
    actions = [action for toy in stepper.env.users_envs for action in toy.actions]
    assert all(map(NESTED.contains, actions))
    assert [action["a"] for action in actions] == [0, 1, 2]


def test_an_exception_tells_the_env():
    with pytest.raises(RuntimeError, match="the robot fell") as caught:
        Stepper(build(toys(fault=RuntimeError("the robot fell")))).reset().step()
    assert caught.value.__notes__ == ["in env 0 of this group of 3, while stepping"]


BYTES = spaces.Box(0, 255, (2,), np.uint8)
MISFITS = {
    "shape": (None, np.zeros(3, np.float32), r"shape \(2,\), dtype float32, got shape \(3,\)"),
    "broadcast": (None, np.array([7.0], np.float32), r"shape \(2,\), dtype float32, got shape \(1,\)"),
    "kind": (BYTES, np.array([300.7, -1.0]), r"dtype uint8, got shape \(2,\), dtype float64"),
    "range": (BYTES, np.array([300, -1]), "dtype int64 with values from -1 to 300, where 0 to 255 are possible"),
    "scalar": (spaces.Discrete(3), 2.9, r"shape \(\), dtype int64, got shape \(\), dtype float64"),
}


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("misfit", MISFITS)
def test_an_observation_that_does_not_fit_is_refused_in_any_step(misfit, at):
    space, value, got = MISFITS[misfit]
    stepper = Stepper(build(toys(space=space, fault=value, at=at))).reset()
    for _ in range(at - 1):
        stepper.step()
    with pytest.raises(ShapeError, match=rf"^observation: expected .*{got}.* from env 0 of the group"):
        stepper.step()


def test_values_of_another_dtype_are_stored_where_they_fit():
    stepper = Stepper(build(toys(space=BYTES, fault=np.array([255, 0])))).reset()
    assert stepper.step().observation[0].tolist() == [[255, 0]] * 3


def test_kept_infos():
    infos = {"speed": 1.5, "pixels": np.ones((2, 2), np.uint8), "lives": 3, "alive": True, "name": "x"}
    stepper = Stepper(build(toys(infos=infos, info_keys=["lives", "pixels", "alive"]))).reset()
    assert [(leaf.key, leaf.shape, numpy_dtype(leaf)) for leaf in stepper.spec.observation[1:]] == [
        (("info", "lives"), (), np.int64),
        (("info", "pixels"), (2, 2), np.uint8),
        (("info", "alive"), (), np.bool_),
    ]
    assert stepper.observation[1].tolist() == [0, 0, 0]
    for _ in range(2):
        _, lives, pixels, alive = stepper.step().observation
        assert lives.tolist() == [3, 3, 3]
        assert (pixels == 1).all()
        assert alive.all()
    with pytest.raises(SpaceError, match="'name' is not numeric"):
        build(toys(infos=infos, info_keys=["name"]))


def test_read_spec_builds_one_env():
    made = []
    read_spec(gym(50, entry_point=lambda: made.append(Toy()) or made[-1]))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("stack", "flatten"),
    [
        ({"_target_": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}, "FlattenObservation"),
        ({"FrameStackObservation": {"stack_size": 3}}, gymnasium.wrappers.FlattenObservation),
        ({"gymnasium.wrappers.FrameStackObservation": {"stack_size": 3}}, {"FlattenObservation": None}),
    ],
)
def test_wrappers_by_name_and_callable(stack, flatten):
    assert build(replace(gym(), wrappers=[stack, flatten])).spec.observation[0].shape == (12,)
