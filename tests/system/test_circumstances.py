"""What a run depends on besides its options, and what its snapshot says of it: Python's order of sets, git's checkout,
and packages of the working directory."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import COMMAND, collectx, environment, result

HASHY = '''
import gymnasium
import numpy as np

class Hashy(gymnasium.Env):
    """The order of its goals is that of a set of texts."""
    observation_space = gymnasium.spaces.Box(0, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        goals = {f"goal {number}" for number in range(8)}
        return np.array([int(goal[5:]) / 8 for goal in goals], np.float32), {}

    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}
'''
RUN = ["run", "env=gym", "env.entry_point=hashy:Hashy", "trainer=meter", "policy=random", "debug=tiny"]


def run(cwd, *words, **variables):
    """Runs the command with these environment variables; returns its exit status and what it printed."""
    command = [COMMAND, *RUN, *words] if words[0] not in ("reproduce", "resume") else [COMMAND, *words]
    without = {name: value for name, value in environment().items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(command, cwd=cwd, env={**without, **variables}, capture_output=True, text=True, timeout=250)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def hashy(tmp_path):
    (tmp_path / "hashy.py").write_text(HASHY)
    return tmp_path


@pytest.mark.parametrize("collector", ["single", pytest.param("distributed_sync", marks=pytest.mark.ci)])
def test_sets_of_texts_have_the_same_order_in_every_run(hashy, collector):
    words = [f"collector={collector}", "trainer.digest=true"]
    assert run(hashy, *words, "hydra.run.dir=a")[0] == 0
    status, said = run(hashy, "reproduce", "a", "hydra.run.dir=b")
    assert (status, "identical: all" in said) == (0, True), said
    assert json.loads((hashy / "a/snapshot/meta.json").read_text())["PYTHONHASHSEED"] == "0"
    status, said = run(hashy, "reproduce", "a", "hydra.run.dir=c", PYTHONHASHSEED="5")
    assert status == 1, said
    assert "PYTHONHASHSEED: 5 in this run, 0 in " in said


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("git") is None, reason="needs root and git")
def test_a_checkout_of_another_user_is_named_with_what_to_type(hashy):
    subprocess.run(["git", "init", "--quiet"], cwd=hashy, check=True)
    for path in (hashy, *(hashy / ".git").rglob("*"), hashy / ".git"):
        os.chown(path, 65534, 65534)
    status, said = run(hashy, "hydra.run.dir=a", GIT_CONFIG_GLOBAL=os.devnull, SUDO_UID="")
    assert status == 0, said
    git = json.loads((hashy / "a/snapshot/meta.json").read_text())["git"]["cwd"]
    assert git["commit"] is None
    assert f"git config --global --add safe.directory {hashy}" in git["refused"]


@pytest.mark.ci
def test_plugins_of_the_working_directory_and_a_folder_named_like_the_package(hashy):
    """A user's `hydra_plugins` may be a package. A folder `collectx`, such as a clone, is where Python looks first."""
    (hashy / "hydra_plugins").mkdir()
    (hashy / "hydra_plugins/__init__.py").touch()
    (hashy / "hydra_plugins/mine.py").write_text(
        "from omegaconf import OmegaConf\nOmegaConf.register_new_resolver('five', lambda: 5, replace=True)\n"
    )
    (hashy / "collectx").mkdir()
    (hashy / "collectx/notes.txt").touch()
    collectx(*RUN, "seed=${five:}", "hydra.run.dir=a", cwd=hashy)
    assert result(hashy / "a")["status"] == "completed"
    assert "seed: 5" in Path(hashy, "a/snapshot/config.yaml").read_text()
