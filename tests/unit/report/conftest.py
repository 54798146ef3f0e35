"""A small sweep of real runs: one and two workers in this process, two seeds of each."""

import pytest

from collectx.cli import run


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "sweep"
    words = ["collector=multi_sync", "launcher=inline", "collector.num_workers=1,2", "seed=0,1", "env.num_envs=2"]
    sizes = ["collector.frames_per_batch=128", "collector.total_frames=1024"]
    assert run.main(["-m", *words, *sizes, f"hydra.sweep.dir={folder}"]) == 0
    return folder
