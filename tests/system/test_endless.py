"""Episodes that are very long, or never end, as their user meets them."""

import subprocess
import sys

import numpy as np
import pytest
from commands import environment, forked, start

from collectx import data

# The observation counts the steps of an episode.
OWN = """
import gymnasium
import numpy as np
class Long(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 9e9, (100,), np.float32), gymnasium.spaces.Discrete(2)
    length = 3000
    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(100, np.float32), {}
    def step(self, action):
        self.count += 1
        return np.full(100, self.count, np.float32), 1.0, self.count == self.length, False, {}
class Never(Long):
    length = None
"""
LIBRARY = """
from own import Never
import collectx
collector = collectx.Collector(Never, None, frames_per_batch=100, total_frames=-1, trajs_per_batch=2)
next(iter(collector))
"""
WORDS = ["env=gym", "env.num_envs=1", "policy=random", "collector=single", "hydra.run.dir=run"]
NEVER = [*WORDS, "env.entry_point=own:Never"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_an_evaluation_ends(folder):
    words = ["eval.every_batches=1", "eval.max_frames_per_episode=200", "trainer=meter", "collector.total_frames=2048"]
    done = forked("run", *NEVER, *words, cwd=folder)
    rule = "0 of 10 episodes have ended, and one has 256 frames without an end (eval.max_frames_per_episode=200)"
    assert f"evaluation stopped: EpisodeTooLongError: {rule}" in done.stdout + done.stderr
    done = forked("eval", "run", cwd=folder, status=1)
    assert (
        f"collectx: EpisodeTooLongError: {rule}. End episodes after N frames with collector.max_frames_per_traj=N"
        in done.stderr
    )
    done = forked("eval", "run", "episodes=2", "collector.max_frames_per_traj=100", cwd=folder)
    assert "mean return 100 " in done.stdout


@pytest.mark.nightly
def test_a_wait_for_whole_trajectories_is_noted(folder, wait_until):
    words = ["trainer=meter", "collector.trajs_per_batch=2", "collector.total_frames=-1"]
    command, said = start("run", *NEVER, *words, cwd=folder), folder / "said.txt"
    text = "trajs_per_batch=2) ended within"
    wait_until(lambda: f"collector.{text}" in said.read_text() or command.poll() is not None, 200, "the note")
    forked("cancel", "run", cwd=folder)
    assert command.wait(200) == 130
    assert "cut each after N frames with collector.max_frames_per_traj=N" in said.read_text()
    (folder / "script.py").write_text(LIBRARY)
    script = [sys.executable, "-W", "error::UserWarning", "script.py"]
    done = subprocess.run(script, cwd=folder, env=environment(), capture_output=True, text=True, timeout=200)
    assert f"UserWarning: only 0 of the 2 trajectories of a batch ({text}" in done.stderr


@pytest.mark.parametrize("format", ["memmap", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_long_episodes_are_recorded_from_files(folder, format):
    words = [*WORDS, "env.entry_point=own:Long", "trainer=record", f"trainer.format={format}"]
    words += ["trainer.flush_every_frames=500", "trainer.partial_episodes=true", "collector.frames_per_batch=100"]
    forked("run", *words, "collector.total_frames=4000", cwd=folder)
    # Of 1,000 frames that have not ended, at most 500 are in memory.
    (state,) = folder.glob("run/checkpoints/*/state.pt")
    assert state.stat().st_size < 600 * 900
    forked("resume", "run", "collector.total_frames=8000", cwd=folder)
    frames = data.load(folder / "run")
    assert np.array_equal(frames["next", "observation"][:, 0], [1 + step % 3000 for step in range(8000)])
    assert frames["collector", "episode"].bincount().tolist() == [3000, 3000, 2000]
