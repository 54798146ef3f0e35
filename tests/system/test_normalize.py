"""Statistics that normalise observations and rewards are wherever the policy of a run acts. As typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import collectx, environment, evaluations, forked, result

from collectx.run import RunFolder

OBSERVATIONS = "policy.normalize_observations=true"
BOTH = [OBSERVATIONS, "trainer.normalize_rewards=true"]
RUN = ["env=pendulum", "env.num_envs=2", "collector.frames_per_batch=128", "collector.total_frames=1024"]
PPO = ["trainer=ppo", "collector=multi_sync", *BOTH, "trainer.digest=true"]


def digests(folder):
    return [line.digest for line in RunFolder(folder).read_metrics()]


@pytest.mark.ci
def test_a_run_its_resume_and_what_is_made_of_it_have_the_same_statistics(tmp_path):
    saving = ["checkpoint.every_batches=2", "run.max_batches=4"]
    collectx("run", *RUN, *PPO, *saving, "hydra.run.dir=run", cwd=tmp_path)
    forked("resume", "run", "run.max_batches=null", cwd=tmp_path)
    forked("run", *RUN, *PPO, "launcher=inline", "hydra.run.dir=uncut", cwd=tmp_path)
    assert digests(tmp_path / "uncut") == digests(tmp_path / "run")
    assert len(digests(tmp_path / "run")) == 8
    forked("reproduce", "run", cwd=tmp_path)
    forked("eval", "run", "episodes=2", cwd=tmp_path)
    for format in ("torchscript", "state_dict"):
        forked("export", "run", f"format={format}", cwd=tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


SCRIPT = """
import numpy as np
import torch
from collectx import load_policy

policy, graph = load_policy("run"), torch.jit.load("run/export/policy.ts")
encode = policy.module.encode
# Of every frame: an angle and its speed.
assert encode.count == 1024 and 0.1 < encode.variance[0] < 1 < encode.variance[2]
seen = np.float32([0.6, 0.8, 3.0])
assert np.allclose(policy(seen), graph(torch.from_numpy(seen)[None])[0][0].numpy())
assert torch.equal(torch.load("run/export/policy.pt")["encode.mean"], encode.mean)
mean = encode.mean.clone()
policy(seen)
assert torch.equal(encode.mean, mean)
"""

WAYS = {
    "impala": ["trainer=impala", "collector=multi_async", *BOTH],
    "impala-gloo": ["trainer=impala", "collector=distributed", "backend=gloo", *BOTH],
    "ppo-server": ["trainer=ppo", "collector=multi_sync", "inference=server", *BOTH],
    "ppo-trajectories": ["trainer=ppo", "collector.trajs_per_batch=2", "collector.traj_format=cat", *BOTH],
}


@pytest.mark.sample(1)
@pytest.mark.ci
@pytest.mark.parametrize("name", WAYS)
def test_statistics_contain_every_frame(tmp_path, name):
    collectx("run", *RUN, *WAYS[name], "hydra.run.dir=run", cwd=tmp_path)
    # Whole trajectories have 200 frames; others are still waiting for their end.
    check(tmp_path, 800 if "trajectories" in name else 1024)


@pytest.mark.ci
def test_workers_leave_the_batches_of_dqn_to_the_trainer(tmp_path):
    words = ["env=cartpole", "trainer=dqn", "policy=q_mlp", "collector=multi_async", OBSERVATIONS]
    words += ["collector.total_frames=2048", "hydra.run.dir=run"]
    collectx("run", *words, cwd=tmp_path)
    check(tmp_path, result(tmp_path / "run")["frames"])


def check(tmp_path, count):
    policy = torch.load(tmp_path / "run" / "policy.pt")
    assert policy["encode.count"] == count > 0


@pytest.mark.ci
def test_wrappers_whose_statistics_are_lost_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    env = ["env=gym", "env.id=user_code.numbered:Numbered-v0", "env.wrappers=[NormalizeObservation]"]
    words = [*env, f"env.kwargs.killed={tmp_path}/killed", "policy=random", "trainer=meter", "run.max_batches=2"]
    restarting = ["collector=multi_sync", "collector.on_worker_failure=restart", "hydra.run.dir=run"]
    told = " ".join(collectx("run", *words, *restarting, cwd=tmp_path).stdout.split())
    note = "NormalizeObservation keeps its statistics inside each env,"
    assert note in told
    assert "after WorkerDied; the statistics of NormalizeObservation in its envs start from scratch" in told
    told = " ".join(forked("eval", "run", "episodes=1", cwd=tmp_path).stderr.split())
    assert "NormalizeObservation uses the statistics that the first env of the first worker had at the newest" in told
    # Of an env that has other wrappers than the run's, as of a run whose checkpoints were deleted.
    other = ["episodes=1", "env.wrappers=[NormalizeReward]"]
    told = " ".join(forked("eval", "run", *other, cwd=tmp_path).stderr.split())
    assert "collectx eval starts without the statistics of NormalizeReward" in told


VECTOR = ["env=gym_vector", "env.wrappers=[NormalizeReward]"]
NORMALIZED = {
    "gym": ["env=gym", "env.wrappers=[NormalizeReward]"],
    "sync": VECTOR,
    "async": [*VECTOR, "env.vectorization_mode=async"],
    "vector wrapper": ["env=gym_vector", "env.entry_point=own:envs"],
}
OWN = """
import gymnasium
def envs(num_envs):
    made = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
    return gymnasium.wrappers.vector.NormalizeReward(made)
"""


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.nightly] * (way == "async")) for way in NORMALIZED]
)
def test_eval_takes_the_statistics_of_wrappers_from_the_checkpoint(tmp_path, way):
    (tmp_path / "own.py").write_text(OWN)
    words = [*NORMALIZED[way], "debug=tiny", "trainer=meter", "policy=random", "hydra.run.dir=run", "env.num_envs=2"]
    words += ["env.id=null"] if way == "vector wrapper" else ["env.id=CartPole-v1"]
    run = collectx if way == "async" else forked  # its processes import the main module
    run("run", *words, "collector=multi_sync", cwd=tmp_path)
    (folder,) = (tmp_path / "run/checkpoints").iterdir()
    (saved,) = torch.load(folder / "state.pt")["collector"]["workers"][0]["normalizers"]
    assert saved["wrapper"] == "NormalizeReward"
    assert saved["count"] > 10
    run("eval", "run", "episodes=3", cwd=tmp_path)
    found = evaluations(tmp_path / "run")[-1]
    # Each reward is 1, divided by the same deviation.
    expected = [length / (saved["var"] + 1e-8) ** 0.5 for length in found["lengths"]]
    assert found["returns"] == pytest.approx(expected, rel=1e-5)
