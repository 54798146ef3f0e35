"""Envs with a world around them, in jobs: changed by the trainer while they run; each with its simulator."""

import shutil
from pathlib import Path

import pytest
from machines import wait_until
from running import LAUNCHERS

WORLDS = Path(__file__).parents[1] / "worlds"
COURSE = ["env.entry_point=levels:LevelEnv", "trainer=custom", "trainer.target=levels:Course"]
RUN = [
    *("env=gym", "env.num_envs=2"),
    *("collector=multi_sync", "collector.num_workers=2", "collector.frames_per_batch=40", "collector.total_frames=480"),
    *("policy=random", "collector.start_timeout_s=280", "hydra.run.dir=run", "hydra.sweep.dir=sweep"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_course_is_followed_in_jobs(run, tmp_path, launcher):
    shutil.copy(WORLDS / "levels.py", tmp_path)
    started = run(*RUN, *COURSE, *LAUNCHERS[launcher])
    assert started.finish() == 0, started.output
    levels = [line["scalars"]["level"] for line in started.files.read_metrics()]
    assert levels == [0] * 3 + [11] * 3 + [12] * 3 + [13] * 3
    assert len(started.events("setting")) == 8


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_env_has_its_simulator_and_takes_it_along(run, tmp_path, launcher):
    for name in ("simulated.py", "simulator.py"):
        shutil.copy(WORLDS / name, tmp_path)
    folder = tmp_path / "simulators"
    folder.mkdir()
    kwargs = f"env.kwargs={{port: 21000, folder: {folder}, flags: [--daemon]}}"
    env = ["env.entry_point=simulated:SimulatedEnv", "trainer=meter", kwargs]
    started = run(*RUN, *env, *LAUNCHERS[launcher])
    assert started.finish() == 0, started.output
    # Two workers of two envs, and the one that shows the spaces.
    assert {int(path.stem) for path in folder.glob("*.pid")} == {21000, 21001, 21002, 21003, 21004}
    assert list(folder.glob("*.licence")) == []


@pytest.mark.nightly
def test_a_worker_that_hangs_takes_its_simulators_along_and_says_what_it_did(run, tmp_path):
    for name in ("simulated.py", "simulator.py"):
        shutil.copy(WORLDS / name, tmp_path)
    folder = tmp_path / "simulators"
    folder.mkdir()
    # In the first step of the third batch. SLURM does not find daemons by their parents.
    kwargs = f"env.kwargs={{port: 21000, folder: {folder}, flags: [--daemon], hangs_at: 21}}"
    env = ["env.entry_point=simulated:SimulatedEnv", "trainer=meter", kwargs, "collector.worker_timeout_s=4"]
    started = run(*RUN, *env, *LAUNCHERS["slurm"])
    assert started.finish() == 1
    assert "It has reported no step of its envs since its last batch." in started.output, started.output
    wait_until(lambda: not list(folder.glob("*.licence")), 20, "the end of the simulators")
