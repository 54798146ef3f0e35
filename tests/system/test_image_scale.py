"""The scale of images in [0, 1], which follows their space, unless a run began with another one."""

import pytest
from commands import collectx, forked, result
from omegaconf import OmegaConf

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


def test_a_run_that_began_with_255_keeps_it(folder, monkeypatch):
    """As earlier versions wrote it where the user had set nothing."""
    forked("run", *RUN, "policy.scale=255.0", cwd=folder)
    done = forked("run", *RUN, cwd=folder)
    assert "this run is already complete" in done.stderr
    forked("run", *RUN, "collector.total_frames=256", cwd=folder)
    assert result(folder / "run")["frames"] == 256
    assert factor(folder, monkeypatch) == 1 / 255
    configs = sorted((folder / "run/snapshot").glob("config*.yaml"))
    assert [OmegaConf.load(path).policy.scale for path in configs] == [255.0, 255.0]
    # What the user sets is another run.
    assert (
        "policy.scale (was 255, now 2) cannot change"
        in forked("run", *RUN, "policy.scale=2", cwd=folder, status=2).stderr
    )
