"""The code of installed packages lies in many places; the state of its modules is not that of an env."""

import importlib
import os
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import torch

import collectx
from collectx.imports import is_installed
from collectx.state import dumps, loads

_ENV = """
count = 0
class Env:
    def step(self):
        global count
        count += 1
        return count
"""


@pytest.mark.parametrize(
    "path",
    [
        os.__file__,
        torch.__file__,
        "/usr/lib/python3/dist-packages/numpy/__init__.py",
        "/home/user/.local/lib/python3.11/site-packages/gymnasium/core.py",
        "/apps/modules/ale/lib/python3.11/site-packages/ale_py/env.py",
    ],
)
def test_packages_are_installed_in_any_environment(path):
    assert is_installed(path)
    assert is_installed(Path(path))


def test_a_source_tree_is_not_installed(tmp_path):
    assert not is_installed(tmp_path / "env.py")
    assert not is_installed(__file__)


@pytest.mark.parametrize("name", ["data.load", "loggers.CsvLogger", "replay.ReplayBuffer"])
def test_public_modules_are_attributes_of_the_package(name):
    assert attrgetter(name)(collectx).__module__.startswith("collectx.")


@pytest.mark.parametrize(("folder", "restored"), [("project", 1), ("lib/python3.11/site-packages", 2)])
def test_only_modules_of_the_user_are_restored_with_an_env(folder, restored, tmp_path, monkeypatch):
    place = tmp_path / folder
    place.mkdir(parents=True)
    (place / "counting_steps.py").write_text(_ENV)
    monkeypatch.syspath_prepend(place)
    module = importlib.import_module("counting_steps")
    try:
        env = {"env": module.Env()}
        env["env"].step()
        saved = dumps(env, "the env")
        env["env"].step()
        loads(saved, env, "the env")
        assert module.count == restored
    finally:
        del sys.modules["counting_steps"]
