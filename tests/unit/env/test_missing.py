"""A package that is not installed gives a message that names the extra which has it."""

import sys

import pytest
from collecting import gym
from gymnasium.error import DependencyNotInstalled

from collectx import env
from collectx.env.make import resolve
from collectx.errors import ConfigError


def needs(text):
    raise DependencyNotInstalled(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`',
            "MuJoCo is not installed: .*collectx.mujoco.'",
        ),
        ("opencv-python package not installed, run `pip`", "opencv-python package not installed: .*collectx.atari.'"),
        ("box2d is not installed, run `pip install swig`", "box2d is not installed, run `pip install swig`"),
    ],
)
def test_a_package_of_an_env(monkeypatch, text, message):
    monkeypatch.setattr("gymnasium.make", lambda *args, **kwargs: needs(text))
    with pytest.raises(ConfigError, match=f"^env.id=CartPole-v1: {message}$"):
        env.read_spec(gym())


def test_a_package_of_a_name(monkeypatch):
    for name in ("torchrl", "torchrl.envs"):  # another test may have imported them
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"torchrl.*pip install 'collectx\[torchrl\]'$"):
        resolve("torchrl.envs:GymEnv", "env.target")
