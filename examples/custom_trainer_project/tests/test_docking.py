"""Run `pytest` in the folder above.

The env keeps to Gymnasium's interface, and a run learns and can be resumed.
"""

import json
import subprocess
import warnings
from pathlib import Path

from gymnasium.utils.env_checker import check_env

from docking.env import Docking

PROJECT = Path(__file__).parents[1]


def collectx(*words):
    subprocess.run(["collectx", *words], cwd=PROJECT, check=True, timeout=200)


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_the_env_has_gymnasiums_interface():
    with warnings.catch_warnings(action="ignore"):  # of the unbounded observations
        check_env(Docking())


def test_a_run_is_cut_and_resumed(tmp_path):
    choices = [
        "--config-dir",
        "conf",
        "experiment=docking",
        "launcher=inline",
        "collector.total_frames=4000",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    collectx("run", *choices, f"hydra.run.dir={whole}")
    collectx("run", *choices, f"hydra.run.dir={cut}", "run.max_batches=3")
    assert result(cut)["frames"] == 2400
    collectx("resume", str(cut), "run.max_batches=null")
    # The resumed run has the same frames as the one that was never cut.
    assert result(cut)["frames"] == result(whole)["frames"] == 4000
    assert result(cut)["digest"] == result(whole)["digest"]
