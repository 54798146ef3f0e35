"""MuJoCo's warnings reach the user once."""

import importlib
import sys
from functools import partial

import numpy as np
import pytest
from configurations import gym, gym_vector
from user_code.cartpoles import cartpole

from collectx import Collector
from collectx.env import build, mujoco_warnings
from collectx.env.mujoco_warnings import show_once

mujoco = pytest.importorskip("mujoco")


@pytest.fixture
def no_handler(monkeypatch):
    monkeypatch.setattr(mujoco_warnings, "shown", set())
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
    assert "MuJoCo warning (shown once): " in said
    assert not [*tmp_path.iterdir()]


def test_a_handler_of_the_user_is_kept(no_handler):
    heard = []
    mujoco.set_mju_user_warning(heard.append)
    show_once()
    assert mujoco.get_mju_user_warning() == heard.append


FAKE = """
handler = None

def get_mju_user_warning():
    return handler

def set_mju_user_warning(function):
    global handler
    handler = function
"""


def test_an_env_whose_function_imports_mujoco_warns_once(tmp_path, monkeypatch, capfd):
    (tmp_path / "mujoco.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mujoco")
    monkeypatch.setattr(mujoco_warnings, "shown", set())

    def create():
        imported = importlib.import_module("mujoco")
        for _ in range(2):
            imported.handler("the model has no mass")
        return cartpole()

    with Collector(create, frames_per_batch=4, num_envs=2) as collector:
        assert collector.next().numel() == 4
    assert capfd.readouterr().err == "MuJoCo warning (shown once): the model has no mass\n"
    assert not any(type(finder).__module__.startswith("collectx") for finder in sys.meta_path)
