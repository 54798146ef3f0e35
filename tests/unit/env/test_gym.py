from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stepping import Stepper

from collectx.config import EnvConfig, GymEnvConfig
from collectx.env import build, read_spec
from collectx.env.spaces import numpy_dtype
from collectx.errors import ConfigError, ShapeError, SpaceError


class Toy(gymnasium.Env):
    """Records its actions; returns or raises `fault` at step `at`."""

    made = 0

    def __init__(self, observation_space=None, action_space=None, fault=None, at=2, infos=None):
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)
        self.fault, self.at, self.infos = fault, at, infos or {}
        self.actions: list = []
        Toy.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        self.actions.append(action)
        if self.t == self.at and self.fault is not None:
            if isinstance(self.fault, Exception):
                raise self.fault
            return self.fault, 0.0, False, False, self.infos
        return self.observation_space.sample(), 0.5, False, False, self.infos


def config(num_envs=3, id=None, wrappers=(), info_keys=(), **kwargs) -> GymEnvConfig:
    return GymEnvConfig("gym", num_envs, id, None if id else Toy, kwargs, list(wrappers), list(info_keys))


def run(steps: int, *action: np.ndarray, **changes) -> Stepper:
    stepper = Stepper(build(config(**changes))).reset()
    for _ in range(steps):
        stepper.step(*action)
    return stepper


def test_discrete_actions_are_values_of_the_env():
    stepper = run(1, np.array([5, 6, 7]), action_space=spaces.Discrete(3, start=5))
    assert [toy.actions for toy in stepper.env.users_envs] == [[5], [6], [7]]


def test_nested_actions_and_observations():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64)])})
    stepper = run(3, np.array([0, 1, 2]), np.zeros((3, 2)), action_space=space, observation_space=space)
    assert [leaf.key for leaf in stepper.spec.action] == [("action", "a"), ("action", "b", "0")]
    toys = stepper.env.users_envs
    assert all(space.contains(action) for toy in toys for action in toy.actions)
    assert [toy.actions[0]["a"] for toy in toys] == [0, 1, 2]


def test_an_exception_of_the_env_comes_through_unchanged():
    fault = RuntimeError("the robot fell")
    with pytest.raises(RuntimeError, match="the robot fell") as caught:
        run(3, fault=fault)
    assert caught.value is fault
    assert caught.value.__notes__ == ["in env 0 of this group of 3, while stepping"]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), [[1.0], [2.0, 3.0]]], ids=["shape", "uneven"])
def test_an_observation_of_the_wrong_shape(at, wrong):
    with pytest.raises(ShapeError, match=r"observation: expected shape \(2,\), dtype float32, got .* env 0"):
        run(3, fault=wrong, at=at)


def test_kept_infos():
    infos = {"speed": 1.5, "pixels": np.ones((2, 2), np.uint8), "lives": 3, "alive": True}
    stepper = run(0, infos=infos, info_keys=["lives", "pixels", "alive"])
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


@pytest.mark.parametrize(
    ("key", "message"),
    [("missing", "has no 'missing'; it has name"), ("name", "'name' is not numeric")],
)
def test_infos_that_cannot_be_kept(key, message):
    with pytest.raises(SpaceError, match=message):
        build(config(infos={"name": "x"}, info_keys=[key]))


def test_read_spec_builds_one_env():
    Toy.made = 0
    assert (read_spec(config(num_envs=50)).num_envs, Toy.made) == (50, 1)


@pytest.mark.parametrize(
    ("stack", "flatten"),
    [
        ({"_target_": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}, "FlattenObservation"),
        ({"FrameStackObservation": {"stack_size": 3}}, gymnasium.wrappers.FlattenObservation),
        ({"gymnasium.wrappers.FrameStackObservation": {"stack_size": 3}}, {"FlattenObservation": None}),
    ],
)
def test_wrappers_by_name_and_callable(stack, flatten):
    assert build(config(wrappers=[stack, flatten])).spec.observation[0].shape == (6,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry_point": None}, "id=None and env.entry_point=None: give exactly one"),
        ({"id": "CartPole-v1"}, "give exactly one"),
        ({"entry_point": "no.such:thing"}, "env.entry_point=no.such:thing: cannot be imported"),
        ({"entry_point": "os:sep"}, "env.entry_point=os:sep: is str, expected something to call"),
        ({"wrappers": [{"a": 1}]}, r"env.wrappers\[0\]=.*expected a name"),
        ({"wrappers": [{"_target_": "gymnasium.wrappers.Nope"}]}, r"env.wrappers\[0\]=gymnasium.wrappers.Nope"),
        ({"num_envs": 0}, "num_envs=0 is below 1"),
        ({"kind": "gim"}, "kind=gim is not one of gym, gym_vector, envpool, torchrl, counting"),
    ],
)
def test_wrong_configuration(changes, message):
    fields = {"kind": "gym", "num_envs": 1, "id": None, "entry_point": Toy, **changes}
    with pytest.raises(ConfigError, match=message):
        build(EnvConfig("gim", 1) if "kind" in changes else GymEnvConfig(**fields))


def test_ale_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"collectx\[atari\]"):
        build(config(id="ALE/Pong-v5"))


def test_an_id_with_its_module():
    build(config(id="gymnasium:CartPole-v1")).close()
