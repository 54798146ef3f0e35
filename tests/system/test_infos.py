"""Entries of `info` as a user types them: kept in the batch."""

from __future__ import annotations

import pytest
from commands import collectx

pytestmark = pytest.mark.ci

ENV = '''
import os, gymnasium, numpy as np

class Arm(gymnasium.Env):
    """Succeeds in each second episode of seven steps; writes a line for each step."""
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.t, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        with open(f"steps-{os.getpid()}", "a") as file:
            file.write(f"{id(self)}\\n")
        end = self.t == 7
        info = {"height": [0.5, 1.5], "force": {"x": float(self.t)}}
        return np.zeros(2, np.float32), 1.0, end, False, info | ({"is_success": self.episodes % 2 == 0} if end else {})
'''
ARM = ("debug=tiny", "trainer=meter", "env=gym", "env.id=null", "env.entry_point=arm:Arm", "hydra.run.dir=run")


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "arm.py").write_text(ENV)
    return tmp_path


def test_only_an_env_of_the_trainer_is_stepped_to_learn_infos(arm):
    done = collectx("run", *ARM, "collector=multi_sync", "env.info_keys=[height,is_success]", cwd=arm)
    declared = "env.info_keys=[{height: [float64, 2]}, {is_success: bool}]"
    assert f"To avoid this, declare them: '{declared}'" in done.stdout + done.stderr
    counts = sorted(len(path.read_text().split()) for path in arm.glob("steps-*"))
    assert counts == [7, 64, 64]  # 128 frames of two workers, and one episode
    done = collectx("run", *ARM, "collector=multi_sync", declared, "run.overwrite=true", cwd=arm)
    assert "declare" not in done.stdout + done.stderr
    counts = sorted(len(path.read_text().split()) for path in arm.glob("steps-*"))
    assert counts == [7, 64, 64, 64, 64]
