"""Settings of the envs of one worker: envs in wrappers, Gymnasium's vector envs, and objects that step several envs."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from worlds.levels import LevelEnv

from collectx.env.base import Env
from collectx.env.gym import GymEnv
from collectx.env.gym_vector import GymVectorEnv
from collectx.worker.env_settings import change, get_attr, packed_or_none


class Renamed(gymnasium.Wrapper):
    """A wrapper with an attribute of its own."""

    shift = 0


class Several(Env):
    """One object that steps two envs."""

    level, spec = 0, SimpleNamespace(num_envs=2)
    reset = reset_some = step = None


def wrapped():
    return GymEnv([Renamed(LevelEnv()), LevelEnv()])


def vector():
    return GymVectorEnv(gymnasium.vector.SyncVectorEnv([LevelEnv] * 2, autoreset_mode="Disabled"))


def rollout(*groups):
    return SimpleNamespace(groups=groups)


@pytest.mark.parametrize("make", [wrapped, vector])
def test_every_env_of_every_group_is_changed_and_read(make):
    groups = rollout(make(), make())
    change(groups, "set_attr", "level", (True, [1, 2, 3, 4]))
    assert get_attr(groups, "level") == [1, 2, 3, 4]
    change(groups, "set_attr", "level", (False, [9]))
    assert get_attr(groups, "level") == [[9]] * 4
    results = change(groups, "call", "set_level", ((5,), {"by": 1}))
    assert [each.level for each in results] == [6] * 4
    assert [packed_or_none(each) for each in results] == [None] * 4
    change(groups, "reset_options", "", {"speed": 7})
    out = [np.zeros((2, 2), np.float32)]
    groups.groups[1].reset([1, 2], out)
    assert out[0].tolist() == [[6, 7]] * 2
    change(groups, "reset_options", "", None)
    groups.groups[1].reset_some(np.array([False, True]), out)
    assert out[0].tolist() == [[6, 7], [6, 0]]
    with pytest.raises(AttributeError, match="nope"):
        change(groups, "set_attr", "nope", (False, 1))


@pytest.mark.parametrize("make", [wrapped, vector])
@pytest.mark.parametrize("is_each", [False, True])
def test_an_env_that_changes_its_value_in_place_changes_only_that(make, is_each):
    groups, values = rollout(make()), [torch.zeros(1), torch.zeros(1)]
    change(groups, "set_attr", "level", (is_each, values if is_each else values[0]))
    levels = get_attr(groups, "level")
    levels[0] += 1
    assert [each.item() for each in (*levels, *values)] == [1, 0, 0, 0]


def test_an_env_that_changes_its_argument_in_place_changes_only_that():
    class Appends(LevelEnv):
        def append(self, values):
            values.append(len(values))
            return values

    content = (([],), {})
    assert change(rollout(GymEnv([Appends(), Appends()])), "call", "append", content) == [[0], [0]]
    assert content == (([],), {})


def test_an_attribute_is_that_of_the_wrapper_that_has_it():
    env = Renamed(LevelEnv())
    group = rollout(GymEnv([env]))
    change(group, "set_attr", "shift", (False, 4))
    change(group, "set_attr", "level", (False, 5))
    assert (env.shift, env.unwrapped.level, "level" in vars(env)) == (4, 5, False)
    change(group, "call", "np_random.normal", ((), {}))
    with pytest.raises(AttributeError, match="nor its wrappers have an attribute 'nope'"):
        get_attr(group, "nope")


def test_an_object_that_steps_several_envs_takes_one_value_and_no_options():
    group = Several()
    change(rollout(group), "set_attr", "level", (False, 3))
    assert get_attr(rollout(group), "level") == [3, 3]
    with pytest.raises(NotImplementedError, match="the 2 envs of Several share their attributes"):
        change(rollout(group), "set_attr", "level", (True, [1, 2]))
    with pytest.raises(NotImplementedError, match="because the resets of these envs take none"):
        change(rollout(group), "reset_options", "", {"a": 1})
