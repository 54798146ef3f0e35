"""How envs are made: what is called with which arguments, what is closed, and what is said if it fails."""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from configurations import counting, gym, gym_vector
from env_stepping import Stepper
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from user_code.spaceenv import SpaceEnv

from collectx.env import build, read_spec
from collectx.env.env_indices import EnvNumbers
from collectx.env.gym import reward_number
from collectx.env.gym_factory import common_outputs
from collectx.errors import ConfigError, DataError
from collectx.user_objects import UserEnvConfig

REWARDS = [
    # a reward, and the number that is stored, or what is said
    (0.5, 0.5),
    (np.float64(0.1), 0.1),
    (np.float16(0.5), 0.5),
    (3, 3.0),
    (True, 1.0),
    (np.bool_(True), 1.0),
    (np.int8(-3), -3.0),
    (2**24, 2.0**24),
    (-(2**24), -(2.0**24)),
    (2**24 + 1, "the reward 16777217 of env 1 would be rounded to 16777216, because"),
    (2**24 + 2, 2.0**24 + 2),
    (-(2**24) - 1, "the reward -16777217 of env 1 would be rounded to -16777216, because"),
    (2**127, 2.0**127),
    (2**128, "would be rounded to inf, because rewards are stored as float32. To allow this, return float(reward)"),
    (np.uint64(2**63), 2.0**63),
    ([1.5], 1.5),
    (np.array([[2]]), 2.0),
    (np.array(3, np.uint8), 3.0),
    (np.array([2**24 + 1]), "the reward 16777217 of env 1 would be rounded to 16777216"),
    (
        np.ones(2),
        " of env 1 must be a single number, but is an array of shape (2,) and dtype float64. Return a float",
    ),
    (
        [],
        " of env 1 must be a single number, but is an array of shape (0,) and dtype float64. Return",
    ),
    (
        [1, [2]],
        " of env 1 must be a single number, but is a ragged list. Return a float from step()",
    ),
    ("x", "the reward of env 1 must be a single number, but is 'x'. Return a float from step()"),
    (
        ["x"],
        " of env 1 must be a single number, but is an array of shape (1,) and dtype <U1. Return",
    ),
    (["x", "y"], "and dtype <U1. Return a float from step(). To add up several objectives"),
    (None, "the reward of env 1 must be a single number, but is None. Return a float from step()"),
    (1j, "the reward of env 1 must be a single number, but is 1j. Return a float from step()"),
]


class Paying(gymnasium.Env):
    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, reward=0.0):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return 0, {}

    def step(self, action):
        return 1, self.reward, False, False, {}


class Behind(VectorEnv):
    """A vector env that pays the rewards that it is given."""

    single_observation_space = single_action_space = spaces.Discrete(2)

    def __init__(self, rewards):
        self.num_envs, self.rewards, self.metadata = 2, rewards, {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return np.zeros(2, int), {}

    def step(self, actions):
        return np.ones(2, int), self.rewards, np.zeros(2, bool), np.zeros(2, bool), {}


def stepped(create):
    cfg = UserEnvConfig(kind="python", num_envs=0, create=create, kwargs={})
    return Stepper(build(cfg)).reset().step().reward


@pytest.mark.parametrize(("reward", "expected"), REWARDS, ids=lambda value: repr(value)[:30])
def test_a_reward_is_a_number_that_can_be_stored(reward, expected):
    """The test makes a single env, and env 1 of a vector env."""
    several = [0.0, reward]
    with_bound = partial(SyncVectorEnv, [Paying, partial(Paying, reward)], autoreset_mode=AutoresetMode.DISABLED)
    if isinstance(expected, str):
        of_one = expected.replace(" of env 1", "")
        for message, call in ((of_one, lambda: reward_number(reward)), (expected, lambda: reward_number(reward, 1))):
            with pytest.raises(DataError, match=re.escape(message)):
                call()
        for create in (lambda: Behind(several), with_bound):
            with pytest.raises(DataError, match=re.escape(expected)):
                stepped(create)
        with pytest.raises(DataError, match=re.escape(expected.replace("env 1", "env 0"))):
            stepped(partial(Paying, reward))
    else:
        assert (reward_number(reward), reward_number(reward, 1)) == (expected, expected)
        assert type(reward_number(reward)) is float
        assert stepped(partial(Paying, reward)).tolist() == [np.float32(expected)]
        for create in (lambda: Behind(several), with_bound):
            assert stepped(create).tolist() == [0, np.float32(expected)]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (np.array([1.5, 2]), [1.5, 2]),
        (np.array([1, 2]), [1, 2]),
        (np.array([[1.5], [2]]), [1.5, 2]),
        ((1, 2.5), [1, 2.5]),
        ([np.array([1]), 2], [1, 2]),
        (np.ones((2, 2)), "returned reward with shape (2, 2), but must return one value per env, with shape (2,)"),
        (np.ones(3), "returned reward with shape (3,), but must return one value per env, with shape (2,)"),
        (1.5, "returned reward with shape (), but must return one value per env, with shape (2,)"),
        (np.array([1, 2**24 + 1]), "the reward 16777217 of env 1 would be rounded"),
        (np.array([0.5, "x"], object), "the reward of env 1 must be a single number, but is 'x'"),
    ],
    ids=str,
)
def test_the_rewards_of_a_users_vector_env(rewards, expected):
    if isinstance(expected, str):
        with pytest.raises(DataError, match=re.escape(expected)):
            stepped(lambda: Behind(rewards))
    else:
        assert stepped(lambda: Behind(rewards)).tolist() == expected


def test_a_users_vector_env_gets_one_seed_and_gymnasiums_one_for_each():
    own, gymnasiums = Behind(np.zeros(2)), SyncVectorEnv([Paying] * 2, autoreset_mode=AutoresetMode.DISABLED)
    for env in (own, gymnasiums):
        group = build(UserEnvConfig(kind="python", num_envs=0, create=lambda env=env: env, kwargs={}))
        group.reset(np.array([4, 5]), [np.zeros(2, np.int64)])
    assert own.seed == 4
    assert [env.seed for env in gymnasiums.envs] == [4, 5]
    assert {type(seed) for seed in (own.seed, gymnasiums.envs[0].seed)} == {int}


class Named(SpaceEnv):
    """Keeps the keyword arguments of each of its instances."""

    made: list

    def __init__(self, **kwargs):
        super().__init__(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)), 3)
        type(self).made.append(self)
        self.kwargs, self.closed = kwargs, 0

    def close(self):
        self.closed += 1


class Numbered(Named):
    def __init__(self, env_index, worker_index=None, **kwargs):
        super().__init__(env_index=env_index, worker_index=worker_index, **kwargs)


@pytest.fixture(autouse=True)
def no_envs():
    Named.made = []


NUMBERS = EnvNumbers(5, 2, 1)
OF_EACH = [
    (gym(2, entry_point=Named, at="{env_index}", n=3), [{"at": 5, "n": 3}, {"at": 6, "n": 3}]),
    (gym(1, entry_point=Numbered), [{"env_index": 5, "worker_index": 2}]),
    (gym(1, entry_point=Numbered, env_index=8), [{"env_index": 8, "worker_index": 2}]),
    (gym(1, entry_point=partial(Numbered, worker_index=9)), [{"env_index": 5, "worker_index": 9}]),
    (replace(gym_vector(2, None, "sync"), id=None, entry_point=Named, kwargs={"at": "{worker_index}"}), None),
    (gym_vector(2, None, "sync", "Named-v0"), [{"size": 4}] * 2),
]


@pytest.fixture
def registered():
    gymnasium.register("Named-v0", entry_point=Named, kwargs={"size": 4})
    yield
    gymnasium.envs.registration.registry.pop("Named-v0")


@pytest.mark.parametrize(("cfg", "kwargs"), OF_EACH)
def test_envs_are_made_with_their_numbers(cfg, kwargs, registered):
    if kwargs is None:
        made = []
        cfg.entry_point = lambda num_envs, at: made.append([num_envs, at]) or SyncVectorEnv([Named] * num_envs)
        build(cfg, numbers=NUMBERS).close()
        assert made == [[2, 2]]
        return
    group = build(cfg, numbers=NUMBERS)
    made = Named.made[-len(kwargs) :]
    assert [env.kwargs for env in made] == kwargs
    group.close()
    assert [env.closed for env in made] == [1] * len(kwargs)


def test_the_spec_is_read_of_one_env_where_envs_are_independent(registered):
    read_spec(gym(4, entry_point=Named))
    assert len(Named.made) == 1
    assert Named.made[0].closed == 1
    before = len(Named.made)
    assert read_spec(gym_vector(4, None, "sync", "Named-v0")).num_envs == 4
    assert len(Named.made) - before == 1
    assert read_spec(counting(0)).num_envs == 0


def test_an_id_that_is_an_entry_point_is_told_the_option():
    with pytest.raises(ConfigError, match=r"so write env\.entry_point=user_code\.faulty:FaultyEnv\.$"):
        build(replace(gym(1), id="user_code.faulty:FaultyEnv"))
    with pytest.raises(ConfigError, match=r"`Nothing` doesn't exist\."):
        build(replace(gym(1), id="user_code.faulty:Nothing"))


class Blank(gymnasium.Env):
    def __init__(self, name=None):
        if name:
            setattr(self, name, spaces.Discrete(2))


@pytest.mark.parametrize("name", [None, "observation_space", "action_space"])
def test_an_env_without_a_space_is_named(name):
    lacks = "action_space" if name == "observation_space" else "observation_space"
    with pytest.raises(ConfigError, match=rf"^Blank has no {lacks}\. Set observation_space and action_space in its"):
        build(gym(1, entry_point=partial(Blank, name)))


OUTPUTS = [
    ({}, {}, ["videos"]),
    ({"folder": "{env_index}"}, {}, []),
    ({"folder": "{worker_index % 2}"}, {}, []),
    ({"video_folder": "v"}, {}, []),
    ({"filename": "v"}, {}, []),
    ({"folder": "v"}, {}, ["videos"]),
    ({}, {"wrappers": [{"RecordVideo": {"video_folder": "v"}}]}, []),
    ({}, {"wrappers": ["ClipAction"]}, ["videos"]),
]


def record(**kwargs):
    return None


def record_by_index(env_index, **kwargs):
    return None


@pytest.mark.parametrize(("kwargs", "fields", "expected"), OUTPUTS)
def test_paths_to_which_each_env_writes(kwargs, fields, expected):
    recording = type("RecordVideo", (SimpleNamespace,), {})(video_folder="videos")
    cfg = replace(gym(2, entry_point=record, **kwargs), **fields)
    assert common_outputs(cfg, [recording, recording]) == expected
    assert common_outputs(replace(cfg, entry_point=record_by_index), [recording]) == []
    assert common_outputs(replace(cfg, id="CartPole-v1", entry_point=None), [recording]) == []
    assert common_outputs(counting(2), [recording]) == common_outputs(cfg, []) == []


def test_errors_of_a_users_wrapper_are_its_own_and_those_of_gymnasiums_name_the_option():
    def broken(env):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        build(replace(gym(1, entry_point=Named), wrappers=[broken]))
    assert not isinstance(raised.value, ConfigError)
    assert isinstance(
        build(replace(gym(1, entry_point=Named), wrappers=["ClipAction"])).user_envs[0], gymnasium.Wrapper
    )
    with pytest.raises(
        ConfigError, match=r"env\.wrappers\[0\]=TimeLimit cannot wrap Named: .* Leave it out, or change its arguments"
    ):
        build(replace(gym(1, entry_point=Named), wrappers=[{"TimeLimit": {"max_episode_steps": -1}}]))
    with pytest.raises(
        ConfigError, match=r"needs the argument max_episode_steps\. Pass it, as in env.wrappers=\[{Time"
    ):
        build(replace(gym(1, entry_point=Named), wrappers=["TimeLimit"]))
