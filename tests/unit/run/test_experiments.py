"""Every packaged experiment runs two batches on the real parts."""

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
