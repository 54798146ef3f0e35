"""The scale of images in [0, 1], which follows their space."""

import pytest
from commands import collectx

import collectx as library

ENV = """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (12, 12), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random((12, 12), np.float32), {}
    def step(self, action):
        return self.np_random.random((12, 12), np.float32), 1.0, self.np_random.random() < 0.1, False, {}
"""
RUN = ["env=gym", "env.entry_point=bright:Env", "policy=cnn", "policy.channels=[2]", "policy.kernel_sizes=[3]"]
RUN += ["policy.strides=[2]", "policy.hidden_size=4", "debug=tiny", "hydra.run.dir=run", "run.resume=auto"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bright.py").write_text(ENV)
    return tmp_path


def factor(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    return library.load_policy(folder / "run").module.encode._factor


def test_images_in_0_to_1_are_not_divided(folder, monkeypatch):
    collectx("run", *RUN, cwd=folder)
    assert factor(folder, monkeypatch) == 1
