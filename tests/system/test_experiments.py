"""Every packaged experiment runs two batches over worker processes; PPO learns from whole trajectories."""

from __future__ import annotations

from pathlib import Path

import pytest

import collectx.conf
from collectx.cli.compose import compose
from collectx.run import Status, execute

EXPERIMENTS = sorted(path.stem for path in (Path(collectx.conf.__file__).parent / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_runs_two_batches(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log where it runs
    result = execute(compose([f"experiment={experiment}", "debug=tiny"]), tmp_path / "run", [])
    assert (result.status, result.batches, result.frames) == (Status.COMPLETED, 2, 128), result.failures


def test_ppo_learns_from_whole_trajectories(tmp_path):
    shape = ["collector.trajs_per_batch=20", "collector.traj_format=cat", "launcher=inline"]
    until = ["collector.total_frames=81920", "trainer.target_return=150"]
    result = execute(compose(["experiment=cartpole_ppo", *shape, *until]), tmp_path / "run", ["run"])
    assert result.status is Status.COMPLETED
    assert result.mean_return >= 150
