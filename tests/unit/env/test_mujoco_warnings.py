"""MuJoCo's warnings reach the user once."""

from functools import partial

import numpy as np
import pytest
from collecting import gym, gym_vector

from collectx.env import build
from collectx.env.mujoco_warnings import show_once

mujoco = pytest.importorskip("mujoco")


@pytest.fixture
def no_handler():
    mujoco.set_mju_user_warning(None)
    yield
    mujoco.set_mju_user_warning(None)


@pytest.mark.parametrize("make", [partial(gym, 3), partial(gym_vector, 3, None, "sync")], ids=["gym", "gym_vector"])
def test_warnings_of_many_envs_and_steps_are_shown_once(no_handler, capfd, tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # MuJoCo's own handler writes a log to it
    for _ in range(2):
        group = build(make(id="InvertedPendulum-v5"))
        (envs,) = [getattr(env.unwrapped, "envs", [env]) for env in group.user_envs[:1]]
        for env in [*envs, *group.user_envs[1:]]:
            env.reset()
            data = env.unwrapped.data
            data.qvel[:] = np.nan
            mujoco.mj_step(env.unwrapped.model, data)
        group.close()
    said = capfd.readouterr().err
    assert said.count("in QVEL") == 1, said
    assert "WARNING of MuJoCo, shown once: " in said
    assert not [*tmp_path.iterdir()]


def test_a_handler_of_the_user_is_kept(no_handler):
    heard = []
    mujoco.set_mju_user_warning(heard.append)
    show_once()
    assert mujoco.get_mju_user_warning() == heard.append
