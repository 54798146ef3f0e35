from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collectx.config import CountingEnvConfig, EnvConfig, GymEnvConfig
from collectx.env import build, read_spec
from collectx.env.base import StepRows
from collectx.env.spaces import numpy_dtype
from collectx.errors import ConfigError, ShapeError, SpaceError


class Toy(gymnasium.Env):
    """Remembers its actions; misbehaves at the given step."""

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


def config(**changes) -> GymEnvConfig:
    return GymEnvConfig(**{"kind": "gym", "num_envs": 3, "id": None, "entry_point": Toy, **changes})


def rows(env) -> StepRows:
    size = env.spec.num_envs
    return StepRows(
        [np.zeros((size, *leaf.shape), numpy_dtype(leaf)) for leaf in env.spec.observation],
        np.zeros(size, np.float32),
        np.zeros(size, bool),
        np.zeros(size, bool),
        np.ones(size, bool),
    )


def run(env, steps: int, action=None) -> StepRows:
    out = rows(env)
    env.reset(list(range(env.spec.num_envs)), out.observation)
    for _ in range(steps):
        out.terminated[:] = out.truncated[:] = False
        env.step(
            action or [np.zeros((env.spec.num_envs, *leaf.shape), numpy_dtype(leaf)) for leaf in env.spec.action], out
        )
    return out


def test_actions_may_be_kept_and_changed_by_the_env():
    env = build(config(kwargs={"action_space": spaces.Box(-1, 1, (2,), np.float32)}))
    action = np.arange(6, dtype=np.float32).reshape(3, 2)
    run(env, 1, [action])
    env._envs[0].actions[0][:] = 99
    assert action.tolist() == [[0, 1], [2, 3], [4, 5]]
    action[:] = -1
    assert env._envs[1].actions[0].tolist() == [2, 3]


def test_discrete_actions_are_values_of_the_env():
    env = build(config(kwargs={"action_space": spaces.Discrete(3, start=5)}))
    run(env, 1, [np.array([5, 6, 7])])
    assert [toy.actions for toy in env._envs] == [[5], [6], [7]]


def test_nested_actions_and_observations():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64)])})
    env = build(config(kwargs={"action_space": space, "observation_space": space}))
    assert [leaf.key for leaf in env.spec.action] == [("action", "a"), ("action", "b", "0")]
    run(env, 3, [np.array([0, 1, 2]), np.zeros((3, 2))])
    assert all(space.contains(action) for toy in env._envs for action in toy.actions)
    assert [toy.actions[0]["a"] for toy in env._envs] == [0, 1, 2]


def test_an_exception_of_the_env_comes_through_unchanged():
    fault = RuntimeError("the robot fell")
    env = build(config(kwargs={"fault": fault}))
    with pytest.raises(RuntimeError, match="the robot fell") as caught:
        run(env, 3)
    assert caught.value is fault
    assert caught.value.__notes__ == ["in env 0 of this group of 3, while stepping"]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), [[1.0], [2.0, 3.0]]], ids=["shape", "uneven"])
def test_an_observation_of_the_wrong_shape(at, wrong):
    env = build(config(kwargs={"fault": wrong, "at": at}))
    with pytest.raises(ShapeError, match=r"observation: expected shape \(2,\), dtype float32, got .* env 0"):
        run(env, 3)


def test_kept_infos():
    infos = {"speed": 1.5, "pixels": np.ones((2, 2), np.uint8), "lives": 3, "alive": True}
    env = build(config(kwargs={"infos": infos}, info_keys=["lives", "pixels", "alive"]))
    assert [(leaf.key, leaf.shape, numpy_dtype(leaf)) for leaf in env.spec.observation[1:]] == [
        (("info", "lives"), (), np.int64),
        (("info", "pixels"), (2, 2), np.uint8),
        (("info", "alive"), (), np.bool_),
    ]
    out = rows(env)
    env.reset([0, 1, 2], out.observation)
    assert out.observation[1].tolist() == [0, 0, 0]
    out = run(env, 2)
    assert out.observation[1].tolist() == [3, 3, 3]
    assert (out.observation[2] == 1).all()


@pytest.mark.parametrize(
    ("key", "message"),
    [("missing", "has no 'missing'; it has name"), ("name", "'name' is not numeric")],
)
def test_infos_that_cannot_be_kept(key, message):
    with pytest.raises(SpaceError, match=message):
        build(config(kwargs={"infos": {"name": "x"}}, info_keys=[key]))


def test_read_spec_builds_one_env():
    Toy.made = 0
    spec = read_spec(config(num_envs=50))
    assert (spec.num_envs, Toy.made) == (50, 1)


@pytest.mark.parametrize(
    "named",
    [
        {"_target_": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3},
        {"FrameStackObservation": {"stack_size": 3}},
        {"gymnasium.wrappers.FrameStackObservation": {"stack_size": 3}},
    ],
)
@pytest.mark.parametrize(
    "bare", ["FlattenObservation", gymnasium.wrappers.FlattenObservation, {"FlattenObservation": None}]
)
def test_wrappers_by_name_and_callable(named, bare):
    env = build(config(wrappers=[named, bare]))
    assert env.spec.observation[0].shape == (6,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entry_point": None}, "id=None and env.entry_point=None: give exactly one"),
        ({"entry_point": "no.such:thing"}, "env.entry_point=no.such:thing: cannot be imported"),
        ({"entry_point": "os:sep"}, "env.entry_point=os:sep: is str, expected something to call"),
        ({"wrappers": [{"a": 1}]}, r"env.wrappers\[0\]=.*expected a name"),
        (
            {"wrappers": [{"_target_": "gymnasium.wrappers.Nope"}]},
            r"env.wrappers\[0\]=gymnasium.wrappers.Nope",
        ),
        ({"num_envs": 0}, "num_envs=0 is below 1"),
    ],
)
def test_wrong_configuration(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(config(**changes))


def test_unknown_kind():
    with pytest.raises(ConfigError, match="kind=gim is not one of gym, gym_vector, envpool, torchrl, counting"):
        build(EnvConfig(kind="gim", num_envs=1))


def test_ale_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"collectx\[atari\]"):
        build(config(id="ALE/Pong-v5", entry_point=None))


def test_an_id_with_its_module():
    env = build(config(id="gymnasium:CartPole-v1", entry_point=None))
    env.close()


def test_counting_rejects_what_it_cannot_count():
    with pytest.raises(ConfigError, match=r"observation_size=2 is below 3[\s\S]*episode_length=0"):
        build(CountingEnvConfig(kind="counting", num_envs=1, episode_length=0, observation_size=2, step_s=0.0))
