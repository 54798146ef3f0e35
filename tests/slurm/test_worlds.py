"""Envs with a world around them, in jobs: changed by the trainer while they run; each with its simulator."""

import shutil
from pathlib import Path

import pytest
import torch
from commands import collectx
from machines import wait_until
from running import LAUNCHERS

from collectx.run import RunFolder

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
    levels = [line.scalars["level"] for line in started.files.read_metrics()]
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


SCORED = """
import gymnasium
from masked import MaskedEnv

class Scored(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(MaskedEnv())

    def step(self, action):
        *step, info = self.env.step(action)
        return *step, info | ({"is_success": step[1] > 2} if step[2] else {})
"""
RESOLVER = "from omegaconf import OmegaConf\nOmegaConf.register_new_resolver('twice', lambda number: 2 * number)\n"
LEARNED = [
    *(
        "env.entry_point=scored:Scored",
        "env.num_envs=${twice:1}",
        "env.metrics=[is_success]",
        "trainer=ppo",
        "policy=mlp",
    ),
    *("policy.normalize_observations=true", "trainer.normalize_rewards=true"),
    *("checkpoint.every_batches=1", "checkpoint.keep_best=is_success"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_metrics_masks_statistics_and_the_best_checkpoint_are_those_of_a_local_run(run, tmp_path, launcher):
    """The env raises an error at an illegal action."""
    shutil.copy(WORLDS / "masked.py", tmp_path)
    (tmp_path / "scored.py").write_text(SCORED)
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins/twice.py").write_text(RESOLVER)
    words = [word for word in RUN if not word.startswith(("env.num_envs", "policy"))] + LEARNED
    started = run(*words, *LAUNCHERS[launcher])
    assert started.finish() == 0, started.output
    collectx("run", *words, "hydra.run.dir=local", cwd=tmp_path)
    in_jobs, local = started.files, RunFolder(tmp_path / "local")
    successes = [[line.scalars.get("is_success") for line in files.read_metrics()] for files in (in_jobs, local)]
    assert successes[0] == successes[1]
    assert any(successes[0])
    kept = [sorted(path.name for path in files.checkpoints.iterdir()) for files in (in_jobs, local)]
    assert kept[0] == kept[1]
    weights = [torch.load(files.path / "policy.pt") for files in (in_jobs, local)]
    assert weights[0].keys() == weights[1].keys()
    assert any("count" in name for name in weights[0])
    # The trainer's torch may have another number of threads in a job, and round otherwise.
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)
