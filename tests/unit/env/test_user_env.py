"""Envs that users pass or make themselves."""

from dataclasses import replace

import gymnasium
import pytest
from user_code.torchrlenvs import sampled

from collectx.env import build, user_env
from collectx.env.user_env import copied
from collectx.errors import ConfigError
from collectx.user_objects import UserEnvConfig


def python(create):
    return UserEnvConfig(kind="python", num_envs=0, create=create, kwargs={}, info_keys=[], exclude_keys=[])


class Uncopied(gymnasium.Env):
    def __getstate__(self):
        raise ValueError("a window")


def test_an_env_is_copied_and_a_function_is_not():
    cfg = python(gymnasium.make("CartPole-v1"))
    for is_required in (False, True):
        copy = copied(cfg, is_required)
        assert copy.create is not cfg.create
        assert type(copy.create) is type(cfg.create)
        assert copied(make := python(lambda: None), is_required) is make
    cfg = python(Uncopied())
    assert copied(cfg, False) is cfg
    with pytest.raises(ValueError, match="a window"):
        copied(cfg, True)


def test_an_env_of_torchrl_that_has_started_is_left_alone_unless_a_copy_is_needed(monkeypatch):
    cfg = python(sampled(gymnasium.spaces.Discrete(2)))
    for has_started in (False, True):
        monkeypatch.setattr(user_env, "has_started", lambda env, has_started=has_started: has_started)
        assert (copied(cfg, False) is cfg) == has_started
        assert copied(cfg, True) is not cfg


def test_envs_made_by_one_function_are_different_ones():
    for num_envs in (0, 1):
        env = gymnasium.make("CartPole-v1")
        assert build(replace(python(env), num_envs=num_envs)).user_envs == [env]
    with pytest.raises(ConfigError, match="num_envs=2 cannot be used: create_env_fn is a single env"):
        build(replace(python(env), num_envs=2))
