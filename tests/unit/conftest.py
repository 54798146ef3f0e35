"""SLURM is replaced by a stand-in, see tests/stand_in_slurm.py. Real jobs: tests/slurm."""

from collections.abc import Callable
from pathlib import Path

import pytest
from composed_overrides import remember_compositions
from stand_in_slurm import Queue

from collectx.cli import status
from collectx.jobs import watcher
from collectx.place.slurm import commands


@pytest.fixture(scope="session", autouse=True)
def compositions():
    with pytest.MonkeyPatch.context() as patch:
        remember_compositions(patch)
        yield


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, within: Callable[..., None], tmp_path: Path) -> Queue:
    """Takes the place of SLURM, which is asked without pauses; the working directory is `tmp_path`."""
    queue = Queue()
    monkeypatch.setattr(commands, "_run", queue.run)
    for module in (commands, status):
        within(module, "shutil", which=lambda name: f"/usr/bin/{name}")
    for name in ("REFRESH_S", "_MIN_QUERY_S", "_MAX_QUERY_S", "_SETTLE_S"):
        monkeypatch.setattr(watcher, name, 0)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    return queue
