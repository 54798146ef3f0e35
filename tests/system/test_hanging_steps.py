"""Workers that hang after their first steps, as typed: the timeout is that of later batches."""

import os
import re
from pathlib import Path

import pytest
from commands import collectx, result

WORDS = ["env=gym", "env.num_envs=1", "policy=random", "trainer=meter", "hydra.run.dir=run", "collector.num_workers=1"]
WORDS += ["collector.frames_per_batch=64", "collector.total_frames=128"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("collector", "step_s", "said"),
    [
        pytest.param("multi_sync", 0.1, r"It stepped 12 of 64 times\.", marks=pytest.mark.nightly),
        # All within a moment, of which the trainer has heard the beginning.
        ("distributed_sync", 0.0, r"It stepped \d+ of 64 times\."),
    ],
)
def test_a_worker_that_hangs_in_its_first_batch_has_the_timeout_of_later_ones(
    tmp_path, monkeypatch, collector, step_s, said
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    env = ["env.entry_point=user_code.faulty:FaultyEnv", f"env.kwargs={{fault: sleeps, at_step: 12, step_s: {step_s}}}"]
    options = [f"collector={collector}", "collector.worker_timeout_s=2"]
    collectx("run", *WORDS, *env, *options, cwd=tmp_path, status=1)
    message = result(tmp_path / "run")["failures"][0]["message"]
    assert re.search(rf"made no progress for 2 s \(collector.worker_timeout_s=2\)\. {said}", message)


SLOW_REPLACEMENT = """
import os, signal, time
import gymnasium

class Dies(gymnasium.Wrapper):
    def __init__(self, restart_count):
        time.sleep(4 * restart_count)
        super().__init__(gymnasium.make("CartPole-v1"))
        self.num_left = 20 if restart_count == 0 else 1_000

    def step(self, action):
        self.num_left -= 1
        if self.num_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
"""


@pytest.mark.ci
def test_the_steps_of_a_lost_worker_are_not_those_of_its_replacement(tmp_path):
    """The replacement is still being made when `worker_timeout_s` is over."""
    (tmp_path / "dies.py").write_text(SLOW_REPLACEMENT)
    options = ["collector=multi_sync", "collector.on_worker_failure=restart", "collector.worker_timeout_s=2"]
    collectx("run", *WORDS, "env.entry_point=dies:Dies", *options, cwd=tmp_path)
    assert len(result(tmp_path / "run")["failures"]) == 1
