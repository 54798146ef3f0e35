"""What policies, envs and the user's script draw from the global random generators."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import collectx, result

pytestmark = pytest.mark.ci

APART = """
from collectx import Collector, DistributedSyncCollector, MultiSyncCollector, RandomPolicy
from user_code.seeding import Drawing, Seeding

def num_distinct(episodes):
    return len({tuple(episode.flatten().tolist()) for episode in episodes})

def collect(kind, policy, **keywords):
    if kind is not Collector:
        keywords["start_timeout_s"] = 200.0  # for a busy machine
    with kind(policy=policy, frames_per_batch=24, total_frames=48, **keywords) as collector:
        for batch in collector:
            parts = batch.reshape(-1, 4).unbind(0)
            collector.episodes = [*getattr(collector, "episodes", ()), *parts]
    keys = ("observation", "action", "numpy", "python")
    print(*(num_distinct([each[key] for each in collector.episodes]) for key in keys if key in parts[0].keys()))

if __name__ == "__main__":
    two = [Seeding] * 2
    collect(Collector, Drawing(), create_env_fn=Seeding)
    collect(MultiSyncCollector, Drawing(), create_env_fn=two)
    collect(DistributedSyncCollector, Drawing(), create_env_fn=two, launcher="mp")
    collect(MultiSyncCollector, RandomPolicy(), create_env_fn=two)
    collect(MultiSyncCollector, Drawing(), create_env_fn=two, init_random_frames=24)
"""


def test_a_policy_draws_other_numbers_in_each_episode_of_an_env_that_seeds_the_global_generators(script):
    """The env itself draws the same numbers in each episode."""
    # In a batch of random actions, the policy's other outputs are zeros.
    assert script(APART) == ["1 12 12 12"] * 3 + ["1 12", "1 12 7 7"]


PRESERVED = """
import random
import numpy as np
import torch
from collectx import Collector, MultiSyncCollector
from user_code.seeding import Drawing, Seeding

def seed():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)

def draw():
    return torch.rand(()).item(), np.random.normal(), random.random()

def collect(kind, create_env_fn):
    seed()
    drawn, batches = [draw()], []
    busy = {} if kind is Collector else {"start_timeout_s": 200.0}
    with kind(create_env_fn, Drawing(), frames_per_batch=9, total_frames=36, seed=3, **busy) as collector:
        drawn.append(draw())
        for batch in collector:
            drawn.append(draw())
            batches.append(batch.reshape(-1).exclude("collector"))
    return batches, drawn

if __name__ == "__main__":
    seed()
    expected = [draw() for _ in range(6)]
    for seeds in (False, True):
        here, drawn = collect(Collector, lambda: Seeding(seeds))
        there, _ = collect(MultiSyncCollector, [lambda: Seeding(seeds)])
        print(drawn == expected, all((one == other).all() for one, other in zip(here, there, strict=True)))
"""


def test_a_collector_in_the_script_draws_as_a_worker_and_leaves_the_scripts_draws_unchanged(script):
    assert script(PRESERVED) == ["True True"] * 2


SEEDING = ["env=gym", "env.entry_point=user_code.seeding:Seeding", "debug=tiny", "trainer=meter", "trainer.digest=true"]


@pytest.mark.nightly
@pytest.mark.parametrize("seeds", ["false", "true"], ids=["inline", "resumed"])
def test_two_workers_collect_the_same_batches_inline_and_after_a_resume(tmp_path, monkeypatch, seeds):
    """Inline with an env that draws from the global generators, resumed with one that seeds them too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    words = [*SEEDING, "policy=random", f"+env.kwargs.seeds={seeds}"]
    collectx("run", *words, "hydra.run.dir=local", cwd=tmp_path)
    if seeds == "false":
        collectx("run", *words, "launcher=inline", "hydra.run.dir=other", cwd=tmp_path)
    else:
        collectx("run", *words, "collector.total_frames=64", "hydra.run.dir=other", cwd=tmp_path)
        collectx("resume", "other", "collector.total_frames=128", cwd=tmp_path)
    assert result(tmp_path / "local")["digest"] == result(tmp_path / "other")["digest"]


@pytest.fixture
def script(tmp_path):
    """Runs a script, and returns the lines that it prints."""

    def run(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run([sys.executable, path], env=variables, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run
