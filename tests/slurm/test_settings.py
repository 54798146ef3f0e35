"""What a trainer changes in the envs of jobs while they run."""

import shutil
from pathlib import Path

import pytest
from running import LAUNCHERS

LEVELS = Path(__file__).parents[1] / "worlds" / "levels.py"
COURSE = [
    *("env=gym", "env.entry_point=levels:LevelEnv", "env.num_envs=2", "trainer=custom", "trainer.target=levels:Course"),
    *("collector=multi_sync", "collector.num_workers=2", "collector.frames_per_batch=40", "collector.total_frames=480"),
    *("policy=random", "collector.start_timeout_s=280", "hydra.run.dir=run", "hydra.sweep.dir=sweep"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_course_is_followed_in_jobs(run, tmp_path, launcher):
    shutil.copy(LEVELS, tmp_path)
    started = run(*COURSE, *LAUNCHERS[launcher])
    assert started.finish() == 0, started.output
    levels = [line["scalars"]["level"] for line in started.files.read_metrics()]
    assert levels == [0] * 3 + [11] * 3 + [12] * 3 + [13] * 3
    assert len(started.events("setting")) == 8
